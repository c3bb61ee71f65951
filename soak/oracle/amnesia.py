"""Amnesia: how much of what the far context contributed is lost. Pure arithmetic, nats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MIN_DENOMINATOR = 2.0
"""Under this many nats the far context contributed too little to say what is lost of it."""

CEILING_DENOMINATOR = 6.0
"""The ceiling on amnesia is only applied from this denominator on."""


@dataclass(frozen=True, slots=True)
class Amnesia:
    """ratio = sum(lp_cold - lp_warm) / sum(lp_cold - lp_blank); None where the denominator is too small.

    clipped: the same with per-token differences of the numerator clipped to +-1 nat, so that one token cannot
    make an alarm. denominator: nats the far context contributed.
    """

    ratio: float | None
    clipped: float | None
    denominator: float
    tokens: int


def amnesia(warm: Array, cold: Array, blank: Array) -> Amnesia:
    """All of shape (T,): the same continuation after the cached, the recomputed and the cut context.

    0: all is remembered; 1: as if the far context had never been there; negative or above 1 can happen.
    Raises ValueError for shapes that differ or entries that are not finite.
    """
    if not (warm.shape == cold.shape == blank.shape) or warm.ndim != 1 or warm.size == 0:
        raise ValueError(f"passes of shapes {warm.shape}, {cold.shape}, {blank.shape} cannot be compared")
    if not (np.isfinite(warm).all() and np.isfinite(cold).all() and np.isfinite(blank).all()):
        raise ValueError("a logprob is not finite")
    denominator = float(np.sum(cold - blank))
    lost = cold - warm
    if denominator < MIN_DENOMINATOR:
        return Amnesia(None, None, denominator, int(warm.size))
    return Amnesia(
        ratio=float(np.sum(lost)) / denominator,
        clipped=float(np.sum(np.clip(lost, -1.0, 1.0))) / denominator,
        denominator=denominator,
        tokens=int(warm.size),
    )
