"""Exit codes of ``soak run``, and which of them a run ends with. Pure."""

from __future__ import annotations

import enum

from soak.detect.verdict import Verdict


class ExitCode(enum.IntEnum):
    """What a script that started soak can go by."""

    CLEAN = 0
    CORRUPT = 1  # SUSPECT or CORRUPT
    USAGE = 2  # bad config, bad usage, our own port or folder not to be had
    INCONCLUSIVE = 3  # VACUOUS or still CALIBRATING
    TARGET = 4  # target unusable or lost
    LOAD = 5  # load not delivered, or a threshold missed
    FAULT = 70  # a fault of soak itself: no verdict
    INTERRUPTED = 130


def exit_code(verdict: Verdict, *, interrupted: bool, lost: bool, load_failures: list[str]) -> ExitCode:
    """Interruption first, since the run is not whole; then corruption, which wins over failures of load."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if verdict in (Verdict.SUSPECT, Verdict.CORRUPT):
        return ExitCode.CORRUPT
    if lost:
        return ExitCode.TARGET
    if load_failures:
        return ExitCode.LOAD
    return ExitCode.CLEAN if verdict is Verdict.CLEAN else ExitCode.INCONCLUSIVE
