"""The figures of ``soak bench judge`` as a table. Pure."""

from __future__ import annotations

from soak.bench.judge.measuring import Judged
from soak.bench.load.figures import table


def markdown(seen: Judged) -> str:
    """One row."""
    columns = ("probes x tokens", "divergence, s", "detectors, s", "both, s", "divergence one by one, s")
    row = (
        f"{seen.probes:,} x {seen.tokens}",
        *(f"{s:.2f}" for s in (seen.together_s, seen.detect_s, seen.total_s, seen.one_by_one_s)),
    )
    return table(columns, [row])
