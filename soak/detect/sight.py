"""Which faults a calibration lets evidence see, by the share of probes that they spoil. Pure arithmetic.

It says what the channels' own alternatives can gain, and nothing about ceilings, bounds or exact mode.
"""

from __future__ import annotations

import math

from soak.detect.calibration import Bounds
from soak.detect.edetector import SHARES
from soak.detect.evidence import ABSOLUTE_WEIGHT, MAGNITUDE_WEIGHT

SOON = 200
"""Probes of one stream within which people expect an answer."""


def share_seen(bounds: Bounds) -> float:
    """The share of a stream's probes that a fault must spoil, or evidence does not grow in the long run.

    The best case for the fault's finder: every spoiled probe is over tau and as loud as a score can be. The
    worst case otherwise: no healthy one is over tau or scores at all. See ``share_seen_within``.
    """
    return min(share_seen_within(math.inf, bound, 0.0, 1.0) for bound in (bounds.p0, bounds.m0))


def share_seen_soon(bounds: Bounds, log_bar: float, probes: float = SOON) -> float:
    """The share that takes a stream's evidence to exp(log_bar) in about ``probes``; over 1 if none does."""
    parts = len(SHARES)
    return min(
        share_seen_within(probes, bounds.p0, log_bar, ABSOLUTE_WEIGHT / parts),
        share_seen_within(probes, bounds.m0, log_bar, MAGNITUDE_WEIGHT / parts),
    )


def share_seen_within(probes: float, bound: float, log_bar: float, weight: float) -> float:
    """The share c of ones among zeros with which the best bet reaches exp(log_bar) in ``probes`` steps.

    bound: m, the largest healthy mean, in (0, 1]; weight: of one bet's capital in the whole. A bet with the
    share s gains ln(1 + s (1 - m) / m) on a one and ln(1 - s) on a zero, so c ln(1 + s (1 - m) / m) +
    (1 - c) ln(1 - s) a step on average. At the c returned, the least over all s that are bet with, the steps
    come to log_bar - ln weight; infinitely many come to anything that grows at all. What Shiryaev and Roberts
    add by summing over starts only shortens the way.
    """
    climb = (log_bar - math.log(weight)) / probes
    needed = []
    for share in SHARES:
        lost = -math.log1p(-share)
        needed.append((climb + lost) / (math.log1p(share * (1.0 - bound) / bound) + lost))
    return min(needed)
