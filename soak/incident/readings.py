"""What was learnt of each smaller trace, one line at a time, so that a search survives being killed.

The search is a pure function of the answers it gets: after a restart it asks the same questions again, and
those that were answered before cost nothing. A torn last line is forgotten; a file about another trace is
refused.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from soak.incident.judge import Reading
from soak.incident.rows import rows_of
from soak.incident.trace import Trace

_FORMAT = "soak-minimize-readings"
_MOST_BYTES = 64 << 20


class ReadingsError(Exception):
    """The file cannot be used; the message says why and what to do."""


def trace_digest(trace: Trace) -> str:
    """Sixteen hex digits that name what would be sent and asked; logprobs are no part of it."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(orjson.dumps(rows_of(trace)))
    for ids in (*(s.ids for s in trace.sent), trace.case.ids):
        digest.update(ids.astype("<i4").tobytes())
    return digest.hexdigest()


class Readings:
    """An open file of readings about cuts of one trace. Raises ReadingsError."""

    def __init__(self, path: Path, whole: Trace) -> None:
        self._path = path
        self._known: dict[str, deque[Reading]] = defaultdict(deque)
        self.floor: float | None = None
        self.controls_off = False
        self.seconds = 0.0
        self.replays = 0
        head = {"format": _FORMAT, "trace": trace_digest(whole)}
        kept = self._load(head)
        try:
            self._file = path.open("r+b" if kept is not None else "xb")
        except OSError as error:
            raise ReadingsError(f"{path}: {error.strerror}") from error
        if kept is None:
            self._append(head)
        else:
            self._file.truncate(kept)
            self._file.seek(kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _load(self, head: dict[str, Any]) -> int | None:
        """Take up whole lines; how many bytes of them there are, None without a file."""
        try:
            if self._path.stat().st_size > _MOST_BYTES:
                raise ReadingsError(f"{self._path}: larger than {_MOST_BYTES:,} bytes: not ours")
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReadingsError(f"{self._path}: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines()):
            try:
                said = orjson.loads(line)
                if number == 0 and said != head:
                    raise ReadingsError(
                        f"{self._path}: readings about another trace; move the file away, or name another"
                    )
                if number:
                    self._take(said)
            except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
                raise ReadingsError(f"{self._path}, line {number + 1}: damaged ({error!r})") from error
        if not whole:
            # nothing but a torn first line, if that
            self._path.unlink()
            return None
        return len(whole)

    def _take(self, said: dict[str, Any]) -> None:
        if "floor" in said:
            self.floor, self.controls_off = float(said["floor"]), bool(said["controls_off"])
        else:
            self._known[str(said["trace"])].append(Reading(said["reading"]))
            self.seconds += float(said["seconds"])
            self.replays += 1

    def _append(self, said: dict[str, Any]) -> None:
        try:
            self._file.write(orjson.dumps(said) + b"\n")
            self._file.flush()  # with the system: a killed process loses nothing, a power cut the last of it
        except OSError as error:
            raise ReadingsError(f"{self._path}: {error.strerror}") from error

    def known(self, digest: str) -> Reading | None:
        """The next reading of that trace from before, or None."""
        readings = self._known.get(digest)
        return readings.popleft() if readings else None

    def add(self, digest: str, reading: Reading, seconds: float) -> None:
        """One more replay, written when this returns."""
        self._append({"trace": digest, "reading": reading.value, "seconds": seconds})
        self.seconds += seconds
        self.replays += 1

    def set_floor(self, floor: float, controls_off: bool) -> None:
        """What later replays are judged by."""
        self._append({"floor": floor, "controls_off": controls_off})
        self.floor, self.controls_off = floor, controls_off
