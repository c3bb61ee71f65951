"""An upper confidence bound on the mean of numbers in [0, 1], by betting. It never assumes a tail."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_STAKES = (0.1, 0.3, 0.6, 0.95)
_BISECTIONS = 40


def upper_mean_bound(values: Array, error: float) -> float:
    """The m0 which the mean of ``values`` (shape (n,), in [0, 1]) is over with probability at most ``error``.

    A bettor who holds that the mean is m stakes a share c of all that can be lost on the next value being
    smaller: his capital is the product of 1 - c (x - m) / (1 - m), fair if the mean is m, and m is ruled out
    once the capital averaged over several c reaches 1 / error (Ville; Waudby-Smith and Ramdas, "Estimating
    means of bounded random variables by betting", 2020). By Ville's inequality it may be looked at any time.
    1 without values. Raises ValueError for values outside [0, 1].
    """
    if (
        not 0.0 < error < 1.0
        or values.ndim != 1
        or (values.size and not (values.min() >= 0 <= 1 - values.max()))
    ):
        raise ValueError("a mean is bounded for values between 0 and 1 and an error between 0 and 1")
    bar = -math.log(error) + math.log(len(_STAKES))
    stakes = np.array(_STAKES)[:, None]
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        logs = np.log1p(-stakes * (values - middle) / (1.0 - middle)).sum(axis=1)
        if float(np.logaddexp.reduce(logs)) < bar:
            low = middle
        else:
            high = middle
    return high
