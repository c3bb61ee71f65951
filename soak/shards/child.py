"""``python -m soak.shards.child``: a worker process. Its task comes in by stdin, what it says goes to stdout.

stdin stays open for as long as the run is wanted: when it ends, because the parent closed it or died, the
shard stops and takes its requests back. So no worker outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import traceback
from typing import Any, BinaryIO

import orjson

from soak.run.event_loop import runner
from soak.shards.shard import run_shard
from soak.shards.task import ShardTask

LENGTH_BYTES = 8
"""The task's length goes before it, big end first."""


def read_task(stream: BinaryIO) -> ShardTask:
    """The task that the parent wrote, and nothing after it. Raises EOFError if the parent is gone."""
    head = stream.read(LENGTH_BYTES)
    body = stream.read(int.from_bytes(head)) if len(head) == LENGTH_BYTES else b""
    if not body:
        raise EOFError("no task came")
    # from our own parent, through a pipe that nobody else has
    task: ShardTask = pickle.loads(body)  # noqa: S301
    return task


def tell(kind: str, value: Any) -> None:
    """One line of JSON for the parent. A parent that is gone is told by stdin, not here."""
    line = memoryview(orjson.dumps({kind: value}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
    with contextlib.suppress(OSError):
        while line:
            line = line[os.write(1, line) :]


async def _soak(task: ShardTask) -> dict[str, Any]:
    stop = asyncio.Event()
    run = asyncio.current_task()
    assert run is not None  # noqa: S101 - for the type checker: a coroutine runs in a task
    loop = asyncio.get_running_loop()

    def parent_gone() -> None:
        loop.remove_reader(0)
        stop.set()

    def stopped() -> None:
        if stop.is_set():
            run.cancel()
        stop.set()

    loop.add_reader(0, parent_gone)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped)
    return await run_shard(
        task,
        stop,
        say=lambda text: tell("say", text),
        progress=lambda seen: tell("progress", seen.as_dict()),
    )


def main() -> int:
    """0 with a summary told; 1 with what went wrong told instead."""
    task = read_task(sys.stdin.buffer)
    try:
        with runner() as loop:
            summary = loop.run(_soak(task))
    except (asyncio.CancelledError, Exception) as error:
        kind = type(error).__name__
        known = kind in ("ConfigError", "TargetUnusable", "Interrupted", "MetricsUnavailable")
        words = str(error) if known else "".join(traceback.format_exception(error))
        tell("failed", {"kind": kind, "words": words})
        return 1
    tell("summary", summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
