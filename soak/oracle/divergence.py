"""Divergence of two passes over the same tokens. Pure arithmetic on float64 arrays, nats throughout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

TAIL_BOUND = 0.05
"""A token's |d| above this (nats) counts into the tail share."""

ONSET_BOUND_MIN = 1e-5
"""|d| under this (nats) is never an onset: it is the rounding of one fp32 sum."""

_NEARLY_TOO_LARGE = 700.0  # exp of more than 709.78 is none in float64


@dataclass(frozen=True, slots=True)
class Divergence:
    """Figures of d = lp_warm - lp_cold over T scored tokens; the first one is one past the resume boundary.

    k1, k2, k3: means over tokens of Schulman's estimators ("Approximating KL divergence", 2020) with
    log r = d, that is r = p_warm / p_cold: k1 = -log r, k2 = (log r)^2 / 2, k3 = (r - 1) - log r. Over tokens
    sampled at temperature 1 from the cold pass they estimate KL(cold || warm); over other tokens they are
    discrepancy scores. score: k2 with |d| clipped to 1 nat, what the detectors look at.
    onset: 1-based place of the first token with |d| over the onset bound, 0 if none.
    first16_median_abs: median |d| over the first 16 tokens, NaN if there are fewer.
    """

    tokens: int
    k1: float
    k2: float
    k3: float
    max_abs: float
    median_abs: float
    first16_median_abs: float
    tail_share: float
    onset: int
    score: float

    @property
    def zero(self) -> bool:
        """Whether the passes agree to the last bit."""
        return self.max_abs == 0.0


def k3_per_token(d: Array) -> Array:
    """(exp(d) - 1) - d per token, shape as d, >= 0; expm1 keeps the digits for small d."""
    if d.size and d.max() > _NEARLY_TOO_LARGE:
        with np.errstate(over="ignore"):
            k3 = np.expm1(d) - d
    else:  # errstate takes longer than all the arithmetic on a probe's tokens
        k3 = np.expm1(d) - d
    return np.asarray(np.maximum(k3, 0.0), dtype=np.float64)


def discrepancy_score(d: Array) -> float:
    """Mean of min(|d|, 1)^2 / 2: healthy servers have single tokens nats off, in either direction.

    To second order it equals k3, and it is symmetric: a lost context lowers logprobs, where k3 grows slowly.
    """
    return float(np.mean(0.5 * np.square(np.minimum(np.abs(d), 1.0))))


def diverge(warm: Array, cold: Array, onset_bound: float = ONSET_BOUND_MIN) -> Divergence:
    """Compare two passes, both of shape (T,) with T >= 1 and every entry finite.

    Raises ValueError for other shapes or for NaN and infinity: those are an alarm of their own and must have
    been taken out before.
    """
    if warm.shape != cold.shape or warm.ndim != 1 or warm.size == 0:
        raise ValueError(f"passes of shapes {warm.shape} and {cold.shape} cannot be compared")
    return diverge_many(warm[np.newaxis], cold[np.newaxis], onset_bound)[0]


def diverge_many(warm: Array, cold: Array, onset_bound: float = ONSET_BOUND_MIN) -> list[Divergence]:
    """Compare n pairs of passes of one length: shape (n, T), T >= 1. The figures of each are ``diverge``'s.

    Raises ValueError as that does.
    """
    if warm.shape != cold.shape or warm.ndim != 2 or warm.shape[1] == 0:
        raise ValueError(f"passes of shapes {warm.shape} and {cold.shape} cannot be compared")
    d = warm - cold
    if not np.isfinite(d).all():
        raise ValueError("a logprob is not finite")
    tokens = d.shape[1]
    size = np.abs(d)
    over = size > onset_bound
    onset = np.where(over.any(axis=1), over.argmax(axis=1) + 1, 0)
    with_16 = tokens >= 16
    columns = (
        _row_means(d) * -1.0,
        _row_means(0.5 * d * d),
        _row_means(k3_per_token(d)),
        size.max(axis=1),
        _row_medians(size),
        _row_medians(size[:, :16]) if with_16 else np.full(len(d), np.nan),
        _row_means((size > TAIL_BOUND).astype(np.float64)),
        onset,
        _row_means(0.5 * np.square(np.minimum(size, 1.0))),
    )
    return [Divergence(tokens, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _row_means(values: Array) -> Array:
    return np.asarray(np.add.reduce(values, axis=1) / values.shape[1], dtype=np.float64)


def _row_medians(values: Array) -> Array:
    """As np.median has it, which spends most of its time on other things."""
    low, high = (values.shape[1] - 1) // 2, values.shape[1] // 2
    ordered = np.partition(values, (low, high), axis=1)
    return np.asarray((ordered[:, low] + ordered[:, high]) / 2.0, dtype=np.float64)
