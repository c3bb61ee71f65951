"""What every command that works on a server needs: an event loop, signals as a stop, errors as exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from soak import config as configs
from soak.export.exposition import MetricsUnavailable
from soak.run.connecting import Interrupted
from soak.run.event_loop import runner
from soak.run.exit_code import ExitCode
from soak.sglang.preflight import TargetUnusable

T = TypeVar("T")


def fail(code: ExitCode, words: str) -> int:
    """Say what is wrong on stderr."""
    click.echo(words, err=True)
    return int(code)


def run_stoppable(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run with SIGINT and SIGTERM as a stop; raises what the work raises.

    A second signal waits for nothing but the aborts (a second at most) and ends in CancelledError; a third
    ends the process where it stands.
    """
    with runner() as loop:
        done: T = loop.run(_stoppable(work))
    return done


async def _stoppable(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    stop = asyncio.Event()
    run = asyncio.current_task()
    assert run is not None  # noqa: S101 - for the type checker: a coroutine runs in a task

    def interrupt() -> None:
        if run.cancelling():
            os._exit(int(ExitCode.INTERRUPTED))
        if stop.is_set():
            run.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    return await work(stop)


def explain(error: BaseException, place: Path, unwritten: str) -> int:
    """Say why nothing came of it; the exit code. ``unwritten``: what a second interruption left out."""
    match error:
        case configs.ConfigError() | MetricsUnavailable():
            return fail(ExitCode.USAGE, str(error))
        case TargetUnusable():
            return fail(ExitCode.TARGET, str(error))
        case Interrupted():
            return fail(ExitCode.INTERRUPTED, str(error))
        case asyncio.CancelledError():
            return fail(ExitCode.INTERRUPTED, f"interrupted twice: {unwritten}")
        case OSError():
            a_file = isinstance(error, FileExistsError)  # where a folder was to be made
            why = "is a file; a folder is wanted there" if a_file else error.strerror or error
            return fail(ExitCode.USAGE, f"{error.filename or place}: {why}")
    # Python's own exit code for it would be 1, which says CORRUPT
    told = "".join(traceback.format_exception(error))
    return fail(ExitCode.FAULT, f"{told}soak itself failed: no verdict")
