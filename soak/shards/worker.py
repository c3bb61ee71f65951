"""A worker process as its parent sees it: started with a task, listened to, stopped. It never judges."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from soak.shards.child import LENGTH_BYTES
from soak.shards.exposed import page_at
from soak.shards.shard import Progress
from soak.shards.task import ShardTask

_LONGEST_LINE = 1 << 28  # bytes: a summary is one line


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker came to its end: with a summary, with what went wrong in words, or with neither, killed.

    kind: the exception's name. code: of the process, negative for a signal.
    """

    summary: dict[str, Any] | None = None
    kind: str = ""
    words: str = ""
    code: int = 0

    @property
    def died(self) -> bool:
        """Whether it could not say anything."""
        return self.summary is None and not self.kind


class Worker:
    """One shard in a process of its own. say, progress: told of what it says."""

    def __init__(
        self, task: ShardTask, say: Callable[[str], None], progress: Callable[[Progress], None]
    ) -> None:
        self.task = task
        self._say, self._progress = say, progress
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._port = 0

    @property
    def port(self) -> int:
        """Where it serves its metrics on this machine, 0 until it does."""
        return self._port

    def page(self) -> str | None:
        """Its metrics; blocks."""
        return page_at(self._port) if self._port else None

    @property
    def pid(self) -> int | None:
        """Of the process, None before it was started."""
        return None if self._process is None else self._process.pid

    async def run(self) -> Ended:
        """Start it and listen until it has ended. Cancelled, it ends the process."""
        # in a session of its own: a terminal's interrupt goes to the parent, which stops all of them in order
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "soak.shards.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - both are pipes
        body = pickle.dumps(self.task)
        process.stdin.write(len(body).to_bytes(LENGTH_BYTES) + body)
        if self._stopping:
            process.stdin.close()
        ended = Ended()
        try:
            async for line in process.stdout:
                ended = self._heard(line) or ended
            code = await process.wait()
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise
        return Ended(ended.summary, ended.kind, ended.words, code)

    def _heard(self, line: bytes) -> Ended | None:
        try:
            ((kind, value),) = orjson.loads(line).items()
        except (orjson.JSONDecodeError, ValueError, AttributeError):
            self._say(line.decode(errors="replace").rstrip())  # half a line of one that was killed
            return None
        if kind == "say":
            self._say(value)
        elif kind == "progress":
            seen = Progress(**value)
            self._port = seen.port
            self._progress(seen)
        elif kind == "failed":
            return Ended(kind=value["kind"], words=value["words"])
        elif kind == "summary":
            return Ended(summary=value)
        return None

    def stop(self) -> None:
        """Let it end: it takes its requests back and tells its summary."""
        self._stopping = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
