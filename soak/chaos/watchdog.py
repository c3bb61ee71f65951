"""A small process beside an experiment that undoes what is in force as soon as the experiment's own is dead.

It waits for the end of a pipe, which the system closes however the other side ended, kill -9 included. Then
it takes the ledger over. Where it is killed as well, `soak chaos stop` and the next experiment do the same.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from soak.chaos.ledger import LedgerUnusable, owned
from soak.chaos.undoing import undo_ledger

_LOCK_S = 10.0


class Watchdog:
    """The process, from the side of the experiment. What it does is appended to ``log``."""

    def __init__(self, ledger: Path, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "soak.chaos.watchdog", str(ledger)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        """Let go of it, once the ledger is closed; it ends by itself, or stays to undo what is left."""
        if self._process.stdin is not None:
            self._process.stdin.close()


def main(path: Path) -> int:
    """Wait for the other side's end, then undo; 1 if something is still in force."""
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + _LOCK_S
    while path.exists() and owned(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not path.exists() or owned(path):
        return 0  # it ended in good order, or somebody else came first
    try:
        done = asyncio.run(undo_ledger(path, lambda words: print(words, flush=True)))  # noqa: T201 - its log
    except LedgerUnusable as error:
        print(error, flush=True)  # noqa: T201
        return 1
    return int(any(not undone.ok for undone in done))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
