"""The rules that the detectors are compared with, given the same probes. Pure arithmetic.

Each gives the number of the valid probe at which it first alarms. None of them looks at a confirming pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

PUBLIC_SAMPLES = 16
PUBLIC_THRESHOLDS = (0.005, 0.0025)

CUSUM_SLACK = 0.5
"""Standard deviations by which a probe must be over the mean to count."""


def public_rule(k3: Sequence[float], threshold: float) -> int | None:
    """The public harness's: the mean k3 of 16 samples, of 64 tokens each, over a threshold; then the next 16.

    k3: per valid probe, in order. The number of the last probe of the first group over it, None if none is.
    """
    for end in range(PUBLIC_SAMPLES, len(k3) + 1, PUBLIC_SAMPLES):
        if math.fsum(k3[end - PUBLIC_SAMPLES : end]) / PUBLIC_SAMPLES > threshold:
            return end
    return None


def cusum_bar(run_length: float, slack: float = CUSUM_SLACK) -> float:
    """The bar, in standard deviations, at which a CUSUM of independent normal scores would run so long.

    Siegmund's approximation (1985): (exp(b) - b - 1) / (2 slack^2) with b = 2 slack (bar + 1.166).
    """
    low, high = 0.0, 1000.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        b = 2 * slack * (middle + 1.166)
        low, high = (middle, high) if math.expm1(b) - b < run_length * 2 * slack**2 else (low, middle)
    return high


class Cusum:
    """A textbook CUSUM of scores in standard deviations over the mean, both of the calibration's controls."""

    def __init__(self, controls: Sequence[float], run_length: float) -> None:
        if len(controls) < 2:
            raise ValueError("a CUSUM needs two controls at least")
        self._mean = float(np.mean(controls))
        # where all controls agree to the last bit, any difference at all is as many deviations as one likes
        self._deviation = max(float(np.std(controls, ddof=1)), 1e-12)
        self._bar = cusum_bar(run_length)

    def first_alarm(self, scores: Sequence[float]) -> int | None:
        """The number of the first valid probe at which the sum is over the bar; None if it never is."""
        total = 0.0
        for number, score in enumerate(scores, start=1):
            total = max(0.0, total + (score - self._mean) / self._deviation - CUSUM_SLACK)
            if total > self._bar:
                return number
        return None
