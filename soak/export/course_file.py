"""``course.json`` in a run's folder: its course and how it stands, so that a report can be made of any run.

Written every few seconds and at the end, beside the old one and then in its place: a kill leaves one of the
two. A disk that refuses is said once and stops nothing. It never holds a secret: of the config only what
``public_config`` gives, of the server what the summary says.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from soak.export.course import Course

COURSE_NAME = "course.json"
FORMAT = "soak-course"
MOST_BYTES = 32 << 20
_FIRST_S, _EVERY_S = 2.0, 15.0
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

_Facts = Callable[[], Mapping[str, Any]]


class CourseFile:
    """The file of one run. ``resume``: go on with what an earlier process of the same run id left there."""

    def __init__(
        self,
        out: Path,
        run_id: str,
        config: Mapping[str, Any],
        say: Callable[[str], None],
        *,
        resume: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._run_id, self._config = out / COURSE_NAME, run_id, dict(config)
        self._say, self._clock = say, clock
        self._failing = self._over = False
        self._lock = threading.Lock()
        self.course = Course()
        self.began_s = clock()
        if resume:
            self._go_on()

    def _go_on(self) -> None:
        """A file that cannot be gone on with costs the plots of the time before, and nothing else."""
        try:
            said = read_course_file(self._path)
            if said["run_id"] == self._run_id:
                self.course = Course.from_dict(said["course"])
                self.began_s = float(said["began_s"])
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            self._say(f"{self._path}: cannot be gone on with ({error}): the report begins here")

    @property
    def at_s(self) -> float:
        """Seconds since the run began, in whichever process."""
        return self._clock() - self.began_s

    async def keep(self, facts: _Facts) -> None:
        """Write every few seconds; ``facts`` gives the summary as it would be now. Runs until cancelled."""
        wait_s = _FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(_EVERY_S, 2 * wait_s)
            summary = facts()
            await asyncio.sleep(0)  # two short halts of the loop instead of one long
            values = self._values(summary, ended=False)
            await asyncio.shield(asyncio.to_thread(self._write, values))

    def close(self, summary: Mapping[str, Any]) -> None:
        """The run is over, and this is what came of it."""
        self._write(self._values(summary, ended=True))

    def _values(self, summary: Mapping[str, Any], *, ended: bool) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "run_id": self._run_id,
            "began_s": self.began_s,
            "saved_s": self._clock(),
            "ended": ended,
            "config": self._config,
            "summary": dict(summary),
            "course": self.course.as_dict(),
        }

    def _write(self, values: Mapping[str, Any]) -> None:
        """From the event loop's thread at the end, from another before: never an old state over a new one."""
        with self._lock:
            if self._over:
                return
            self._over = values["ended"]
            part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
            try:
                part.write_bytes(orjson.dumps(values, option=_OPTIONS))
                part.replace(self._path)
            except OSError as error:
                if not self._failing:
                    self._say(f"{self._path}: {error.strerror}: a report will lack what it would have held")
                self._failing = True
                with suppress(OSError):
                    part.unlink(missing_ok=True)


def read_course_file(path: Path) -> dict[str, Any]:
    """What is in it. Raises OSError, and ValueError for what no run has left."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES:,} bytes")
    said = orjson.loads(path.read_bytes())
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError("not what a run leaves behind")
    return said
