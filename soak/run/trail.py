"""What a run leaves on the disk before it does something, so that after a kill another process can go on.

One short line, written over in place before a request is sent: which rids the server may hold, which index of
the plan and which probe came last. It costs a few microseconds and survives the death of the process, not a
power cut. A disk that refuses is said once and stops nothing.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from soak.config import ConfigError
from soak.sglang.client import SGLangClient

TRAIL_NAME = "trail.json"
PREFLIGHT_NAME = "trail-preflight.json"
_WIDTH = 512  # bytes, whatever is in it: a shorter line must leave nothing of a longer one
_MOST_RIDS = 1_000_000
_PREFLIGHT_RID = re.compile(r"soak-preflight-[0-9a-f]{12}-[0-9]{4,6}")


@dataclass(frozen=True, slots=True)
class Left:
    """Where a process was. session: the part of its rids that names it; low, high: numbers of the rids that
    the server may still hold, both ends among them, none if high < low; index, probe: the last that were
    begun, -1 and 0 before the first; ended: whether it came to its end."""

    run_id: str
    session: str
    low: int = 1
    high: int = 0
    index: int = -1
    probe: int = 0
    ended: bool = False

    @property
    def rids(self) -> range:
        """Numbers of the rids that the server may hold."""
        return range(self.low, self.high + 1)


class Trail:
    """The trail of one process, which begins after ``index`` and ``probe``; token: what names it in its rids.

    Raises OSError if the file cannot be made.
    """

    def __init__(
        self, out: Path, run_id: str, say: Callable[[str], None], *, index: int = -1, probe: int = 0
    ) -> None:
        self.token = secrets.token_hex(4)
        self._run_id, self._session = run_id, f"{run_id}-{self.token}"
        self._names = orjson.dumps({"run_id": run_id, "session": self._session})[:-1]
        self._low, self._high, self._index, self._probe, self._ended = 1, 0, index, probe, False
        self._say = say
        self._failing = False
        self._owed = False  # whether the index is still to be written
        self._path = out / TRAIL_NAME
        # Made whole beside the old one: a kill in between must leave one of the two.
        part = out / f".{TRAIL_NAME}.{os.getpid()}.part"
        self._file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(self._file, self._line(), 0)
            part.replace(self._path)
        except BaseException:
            os.close(self._file)
            part.unlink(missing_ok=True)
            raise

    @property
    def left(self) -> Left:
        """What it says now."""
        return Left(self._run_id, self._session, self._low, self._high, self._index, self._probe, self._ended)

    def sending(self, low: int, high: int) -> None:
        """A request is about to be sent."""
        self._low, self._high = low, high
        self._note()

    def begun(self, index: int) -> None:
        """An index of the plan is about to begin. Written with its first request, or when the next begins."""
        if self._owed:  # the one before has sent nothing yet
            self._note()
        self._index, self._owed = index, True

    def probing(self, number: int) -> None:
        """A probe is about to begin."""
        self._probe = number
        self._note()

    def close(self, left_on_server: int) -> None:
        """The process comes to its end, with so many requests that the server could not be told of."""
        if not left_on_server:
            self._low = self._high + 1
        self._ended = True
        self._note()
        os.close(self._file)

    def _line(self) -> bytes:
        """A line of JSON with the fields of Left. Names are written once: this is done for every request."""
        numbers = self._low, self._high, self._index, self._probe
        ended = b"true" if self._ended else b"false"
        line = b'%b,"low":%d,"high":%d,"index":%d,"probe":%d,"ended":%b}' % (self._names, *numbers, ended)
        return line.ljust(_WIDTH - 1) + b"\n"

    def _note(self) -> None:
        self._owed = False
        try:
            os.pwrite(self._file, self._line(), 0)
        except OSError as error:
            if not self._failing:
                self._say(
                    f"{self._path}: {error.strerror}: after a kill `soak run --resume` will not know it all"
                )
            self._failing = True


def read_trail(out: Path) -> Left:
    """Where the process that last wrote there was. Raises ConfigError."""
    path = out / TRAIL_NAME
    try:
        with path.open("rb") as file:
            said = orjson.loads(file.read(_WIDTH))
        left = Left(**said)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; a run that can be resumed has left one") from error
    except (orjson.JSONDecodeError, TypeError) as error:
        raise ConfigError(f"{path}: not what a run leaves behind: {error}") from error
    numbers = (left.low, left.high, left.index, left.probe)
    texts = (left.run_id, left.session)
    fits = all(type(n) is int for n in numbers) and all(isinstance(t, str) and t for t in texts)
    if not fits or left.low < 0 or len(left.rids) > _MOST_RIDS or not left.session.startswith(left.run_id):
        raise ConfigError(f"{path}: not what a run leaves behind")
    return left


class PreflightTrail:
    """The one request that an examination has under way, which goes before the run has a name.

    In a file of its own, there only while a server is examined.
    """

    def __init__(self, out: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = out / PREFLIGHT_NAME, say

    def sending(self, rid: str) -> None:
        """A request of the examination is about to be sent; the one before has been answered."""
        try:
            self._path.write_bytes(orjson.dumps({"rid": rid}))
        except OSError as error:
            self._say(
                f"{self._path}: {error.strerror}: after a kill `soak run --resume` will not know it all"
            )

    def over(self) -> None:
        """The examination has come to its end."""
        self._path.unlink(missing_ok=True)

    async def take_back(self, client: SGLangClient) -> bool:
        """Abort what a killed process had under way, by its whole name; whether there was anything.

        Raises ConfigError for a file that is none of ours.
        """
        try:
            said = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}") from error
        except orjson.JSONDecodeError:  # killed in the middle of a write: the request was not sent yet
            return False
        rid = said.get("rid") if isinstance(said, dict) else None
        if not isinstance(rid, str) or not _PREFLIGHT_RID.fullmatch(rid):
            raise ConfigError(f"{self._path}: not what a run leaves behind")
        await client.abort(rid)
        return True
