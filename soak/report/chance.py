"""Is a difference between two runs more than chance? Two tests and what many tests at once cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LEAST = 8
"""Values on either side under which no rank test is made: its normal approximation would mean nothing."""


def rank_test(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float | None:
    """Two-sided p of Mann and Whitney's test that b is as a, in whatever distribution; None for too few.

    Normal approximation with correction for ties and for continuity (Mann and Whitney, "On a test of whether
    one of two random variables is stochastically larger than the other", 1947; ties: Lehmann,
    "Nonparametrics", 1.4). a, b: shapes (n,), (m,), any order; equal values are ties.
    """
    n, m = a.size, b.size
    if n < LEAST or m < LEAST:
        return None
    whole = n + m
    _, place, repeats = np.unique(np.concatenate([a, b]), return_inverse=True, return_counts=True)
    last = np.cumsum(repeats)
    ranks = (last - (repeats - 1) / 2.0)[place]
    u = float(ranks[:n].sum()) - n * (n + 1) / 2.0
    ties = float(np.sum(repeats.astype(np.float64) ** 3 - repeats)) / (whole * (whole - 1))
    variance = n * m / 12.0 * (whole + 1 - ties)
    if variance <= 0.0:
        return 1.0  # all values are the same
    off = max(0.0, abs(u - n * m / 2.0) - 0.5)
    return math.erfc(off / math.sqrt(2.0 * variance))


def share_test(hits_a: int, of_a: int, hits_b: int, of_b: int) -> float | None:
    """Two-sided p of Fisher's exact test that both shares are one; None where either has nothing to count.

    All tables with the same margins that are no likelier than the one seen (Fisher, "Statistical Methods for
    Research Workers", 21.02).
    """
    if not of_a or not of_b:
        return None
    hits, whole = hits_a + hits_b, of_a + of_b
    low, high = max(0, hits - of_b), min(hits, of_a)
    k = np.arange(low, high + 1)
    logs = _log_choose(of_a, k) + _log_choose(of_b, hits - k)
    logs -= logs.max()
    weights = np.exp(logs)
    seen = weights[hits_a - low]
    # as likely but for rounding counts as no likelier
    return float(min(1.0, weights[weights <= seen * (1 + 1e-7)].sum() / weights.sum())) if whole else None


def _log_choose(n: int, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    facts = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1, dtype=np.float64)))])
    return np.asarray(facts[n] - facts[k] - facts[n - k], dtype=np.float64)


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p of each ("A simple sequentially rejective multiple test procedure", 1979).

    All that are under a level together hold a false one with at most that probability. None stays None.
    """
    told = sorted((p, place) for place, p in enumerate(values) if p is not None)
    out: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, place) in enumerate(told):
        least = max(least, min(1.0, (len(told) - rank) * p))
        out[place] = least
    return out
