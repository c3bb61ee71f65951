"""The leash of a replay that does an experiment's actions again: a ledger and a watchdog, as it had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from soak.chaos.ledger import CONTINUE, NOTHING, Ledger, Undo
from soak.chaos.watchdog import Watchdog
from soak.config.target import Target
from soak.drive.deed import PAUSE, RETRACTION
from soak.drive.doing import Leash


@contextmanager
def leashed(target: Target, ledgers: Path) -> Iterator[Leash]:
    """While inside, what is about to be done to that target is written down first. Raises LedgerUnusable."""
    ledger = Ledger(ledgers, "replay")
    try:
        watchdog = Watchdog(ledger.path, ledger.path.with_suffix(".log"))
        file = "" if target.api_key_file is None else str(target.api_key_file.resolve())
        paused = Undo(CONTINUE, target.url, target.api_key_env, file)

        def holding(name: str) -> AbstractContextManager[object]:
            how = paused if name in (PAUSE, RETRACTION) else Undo(NOTHING)
            return ledger.holding(name, target.url, how)

        try:
            yield holding
        finally:
            watchdog.close()
    finally:
        ledger.close()
        if not ledger.in_force:
            ledger.path.with_suffix(".log").unlink(missing_ok=True)
