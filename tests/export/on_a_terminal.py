"""Shows a full snapshot a few times on its own stdout; run by tests inside a pseudo-terminal."""

from __future__ import annotations

import sys

from soak.detect.verdict import Verdict
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.export.snapshot import Snapshot, take_snapshot
from soak.export.terminal import Terminal
from tests.export.samples import COVERAGE, filled_tally, report


def full(elapsed_s: float = 61.0) -> Snapshot:
    """As much as a display ever has to hold."""
    more = [
        ConjunctionCoverage(f"conjunction-number-{n}", CoverageState.CONFIRMED, 1000 * n, 1.0, n, "identical")
        for n in range(12)
    ]
    return take_snapshot(
        filled_tally(),
        report(Verdict.CORRUPT),
        [*COVERAGE, *more],
        elapsed_s=elapsed_s,
        duration_s=28_800.0,
        target="http://gpu-17.example:30000",
        seed=7,
        asked=22_000,
        delivered=21_000,
        in_flight=31,
        verdict=Verdict.CORRUPT,
        simulator=True,
        events=[
            f"what happened, in a line that is too long for most terminals: number {n}" for n in range(8)
        ],
        budgets={"pool": 0.34, "prefill-share": 0.97, "tokens-per-second": 0.1},
    )


def main() -> None:
    """Three frames, a line that stays, and a fourth."""
    with Terminal(sys.stdout) as screen:
        for second in range(3):
            screen.show(full(float(second)))
        screen.say("a line that stays")
        screen.show(full(3.0))


if __name__ == "__main__":
    main()
