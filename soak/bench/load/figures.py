"""What rounds of a bench measured, their medians and ratios, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OF_ROUNDS = ("requests_per_s", "chunks_per_s", "cpu_s_per_1000", "requests_per_cpu_s", "chunks_per_cpu_s")


@dataclass(frozen=True, slots=True)
class Round:
    """One client's work on the stub. wall_s, cpu_s: seconds of it, CPU of its process with all threads.

    peak_rss: bytes, of the whole process so far; lag_s: p50, p99 and max of schedule lag at an open-loop
    rate; loop_lag_s: the same of its event loop, where it measures that.
    """

    requests: int
    chunks: int
    wall_s: float
    cpu_s: float
    peak_rss: int
    lag_s: tuple[float, float, float] | None = None
    loop_lag_s: tuple[float, float, float] | None = None
    failed: int = 0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Round:
        """From plain values. Raises TypeError for others."""
        values = dict(said)
        for name in ("lag_s", "loop_lag_s"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return cls(**values)

    def figure(self, name: str) -> float:
        """One of OF_ROUNDS; 0 where nothing was done."""
        match name:
            case "requests_per_s":
                return self.requests / self.wall_s
            case "chunks_per_s":
                return self.chunks / self.wall_s
            case "cpu_s_per_1000":
                return 1000 * self.cpu_s / max(1, self.requests)
            case "requests_per_cpu_s":
                return self.requests / self.cpu_s if self.cpu_s else 0.0
            case "chunks_per_cpu_s":
                return self.chunks / self.cpu_s if self.cpu_s else 0.0
        raise ValueError(f"no such figure: {name}")


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p50, p99 and max, each an order statistic (rank ceil(q n)). Raises ValueError for none."""
    if not values:
        raise ValueError("quantiles of nothing")
    ordered, n = sorted(values), len(values)
    return ordered[-(-n // 2) - 1], ordered[-(-99 * n // 100) - 1], ordered[-1]


def medians(rounds: Iterable[Round]) -> dict[str, float]:
    """The median over rounds of each figure."""
    seen = list(rounds)
    return {name: median(one.figure(name) for one in seen) for name in OF_ROUNDS}


def paired_ratio(ours: Sequence[Round], theirs: Sequence[Round], figure: str) -> float:
    """The median over rounds of ours / theirs, each round beside the one that ran next to it.

    Of neighbours rather than of medians: what a busy machine does to one, it does to the other.
    """
    pairs = list(zip(ours, theirs, strict=True))
    if not pairs:
        raise ValueError("a ratio of no rounds")
    return median(mine.figure(figure) / max(1e-12, other.figure(figure)) for mine, other in pairs)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * (len(header) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)
