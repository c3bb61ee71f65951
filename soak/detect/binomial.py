"""Exact bounds on a share from a count (Clopper and Pearson, 1934). It never approximates by a normal.

Written without SciPy, which is large and needed nowhere else at run time; the tests compare with it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_BISECTIONS = 60


@lru_cache(maxsize=8)
def _log_coefficients(successes: int, trials: int) -> npt.NDArray[np.float64]:
    """ln of (trials choose i) for i up to successes: the same for every share a bisection tries."""
    head = math.lgamma(trials + 1)
    return np.array([head - math.lgamma(i + 1) - math.lgamma(trials - i + 1) for i in range(successes + 1)])


def log_binomial_cdf(successes: int, trials: int, share: float) -> float:
    """ln P(X <= successes) for X binomial over ``trials`` with probability ``share``; -inf if it is none.

    Summed in the log domain, so that tails far under the smallest float stay exact.
    """
    if successes >= trials or share <= 0.0:
        return 0.0
    if successes < 0 or share >= 1.0:
        return -math.inf
    count = np.arange(successes + 1, dtype=np.float64)
    terms = (
        _log_coefficients(successes, trials) + count * math.log(share) + (trials - count) * math.log1p(-share)
    )
    peak = float(terms.max())
    return min(0.0, peak + math.log(float(np.exp(terms - peak).sum())))


def clopper_pearson_upper(successes: int, trials: int, error: float) -> float:
    """The one-sided upper confidence bound on a share: the p with P(X <= successes; trials, p) = error.

    The true share is over it with probability at most ``error``. 1 where all or no trials are there to tell.
    Raises ValueError for impossible counts or an error outside (0, 1).
    """
    if not (0 <= successes <= trials) or not 0.0 < error < 1.0:
        raise ValueError(f"no bound for {successes} of {trials} at error {error}")
    if successes == trials:
        return 1.0
    log_error = math.log(error)
    low, high = successes / trials, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if log_binomial_cdf(successes, trials, middle) > log_error:
            low = middle
        else:
            high = middle
    return high  # the side on which the statement is true


def trials_needed(share_max: float, error: float, successes: int = 0) -> int:
    """The fewest trials that bound a share by ``share_max`` at ``error`` when ``successes`` were seen.

    459 for 0.01 at error 0.01 and none seen; 21 for 0.2.
    """
    if not 0.0 < share_max < 1.0 or not 0.0 < error < 1.0 or successes < 0:
        raise ValueError(
            f"no number of trials bounds a share by {share_max} at {error} with {successes} seen"
        )
    log_error = math.log(error)
    high = successes + 1
    while log_binomial_cdf(successes, high, share_max) > log_error:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if log_binomial_cdf(successes, middle, share_max) > log_error:
            low = middle
        else:
            high = middle
    return high
