"""Runs a command that the user gave: an argv list as it stands, in a process group of its own, no shell.

It must end by itself; what it starts may go on. It has no terminal, and what it prints goes to a file that no
report quotes, since a server's own log may hold keys.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


async def run_command(argv: Sequence[str], within_s: float, log: Path | None) -> tuple[bool, str]:
    """Whether it ended well within that time, and words. One that does not end is killed with its group."""
    name = argv[0]
    output = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except OSError as error:
        return False, f"{name}: {error.strerror}"
    finally:
        os.close(output)
    try:
        async with asyncio.timeout(within_s):
            code = await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return False, f"{name} had not ended after {within_s:g} s and was killed"
    where = "" if log is None else f"; what it printed is in {log}"
    return (True, f"{name} ended well") if code == 0 else (False, f"{name} ended with {code}{where}")
