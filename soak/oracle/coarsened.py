"""Top-k coarsened KL: a lower bound of KL(cold || warm) from the few candidates that two passes list. Pure.

Each pass lists its own k best tokens. One list of ids for the whole request (``token_ids_logprob``) would be
the same at every position, so a warm pass cannot be asked for the cold pass's candidates place by place, and
what one pass does not list of the other's is bounded instead. A figure for people: it never is evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from soak.sglang.exchange import Candidates

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]

ROUNDING = 1e-6
"""Probability that the sum of a few float32 probabilities may miss. Given to the warm side, where more
probability only lowers the bound."""


@dataclass(frozen=True, slots=True)
class CoarsenedKL:
    """mean, largest: nats, over the bounds of ``tokens`` scored tokens."""

    tokens: int
    mean: float
    largest: float


@dataclass(frozen=True, slots=True)
class Listed:
    """What one pass says of T places: the token that stands there, and the k best candidates.

    ids, logprobs: shape (T,), nats; top: Candidates of shape (T, k), NaN or id -1 where one is missing.
    """

    ids: Ids
    logprobs: Array
    top: Candidates


def coarsened_kl(cold: Listed, warm: Listed) -> CoarsenedKL:
    """Mean and largest of ``kl_bounds``. Raises ValueError for passes that are not of the same tokens."""
    bounds = kl_bounds(cold, warm)
    return CoarsenedKL(int(bounds.size), float(bounds.mean()), float(bounds.max()))


def kl_bounds(cold: Listed, warm: Listed) -> Array:
    """Shape (T,), nats, >= 0: at each place a number that KL(cold || warm) is not under.

    p is the cold distribution, q the warm one; a token is known to a pass if it is listed or stands there.
    S: tokens known to both. U: known to cold alone. R: all others. Lumping tokens together never raises a
    divergence (the data processing inequality; Cover and Thomas, "Elements of Information Theory", 2.8), so

        KL(p || q) >= sum over i in S of p_i ln(p_i / q_i) + p_U ln(p_U / q_U) + p_R ln(p_R / q_R).

    Of the right side only q_U is unknown, with q_R = 1 - q_S - q_U. No token outside warm's list is likelier
    than the least of that list, and what warm alone knows is not U's: 0 <= q_U <= u. The last two terms are
    convex in q_U and least at q_U = (1 - q_S) p_U / (p_U + p_R), or at u if that is less. Infinite only where
    warm gives probability 0 to what cold does not. Raises ValueError for passes that are not of the same
    tokens, or of none.
    """
    if not np.array_equal(cold.ids, warm.ids) or cold.ids.ndim != 1 or not cold.ids.size:
        raise ValueError("the passes to compare are not of the same tokens")
    p_ids, log_p, p_known = _known(cold)
    q_ids, log_q, q_known = _known(warm)
    p, q = np.exp(log_p), np.exp(log_q)
    same = (p_ids[:, :, None] == q_ids[:, None, :]) & p_known[:, :, None] & q_known[:, None, :]
    in_both = same.any(axis=2)
    log_q_there = np.take_along_axis(log_q, same.argmax(axis=2), axis=1)  # means nothing outside in_both
    shared = _terms(np.where(in_both, p, 0.0), log_p, log_q_there).sum(axis=1)
    p_lone = np.where(in_both, 0.0, p).sum(axis=1)
    p_rest = np.maximum(1.0 - p.sum(axis=1), 0.0)
    q_left = np.clip(1.0 - np.where(same.any(axis=1), q, 0.0).sum(axis=1) + ROUNDING, ROUNDING, 1.0)
    q_lone = np.where(same.any(axis=1), 0.0, q).sum(axis=1)
    log_most = np.log(np.maximum(q_left - q_lone, ROUNDING))
    missing = np.isnan(warm.top.logprobs) | (warm.top.ids < 0)
    least = np.where(missing, 0.0, warm.top.logprobs).min(axis=1, initial=0.0)
    whole = ~missing.any(axis=1) & (missing.shape[1] > 0)
    with np.errstate(divide="ignore"):
        least = least + np.log((p_known & ~in_both).sum(axis=1))
        log_most = np.where(whole, np.minimum(log_most, least), log_most)
        outside = p_lone + p_rest
        even = np.divide(p_lone, outside, out=np.zeros_like(outside), where=outside > 0.0)
        capped = log_most < np.log(q_left) + np.log(even)
        q_rest = q_left - np.where(capped, np.exp(log_most), 0.0)
        apart = _terms(p_lone, np.log(p_lone), log_most) + _terms(p_rest, np.log(p_rest), np.log(q_rest))
        rest = np.where(capped, apart, _terms(outside, np.log(outside), np.log(q_left)))
    return np.asarray(np.maximum(shared + rest, 0.0), dtype=np.float64)


def _known(listed: Listed) -> tuple[Ids, Array, npt.NDArray[np.bool_]]:
    """Ids, logprobs and which of them count, each of shape (T, 1 + k): the standing token comes first.

    A token that is named twice counts once, one without a logprob not at all; logprobs of those are -inf.
    """
    ids = np.concatenate([listed.ids[:, None], listed.top.ids], axis=1)
    logprobs = np.concatenate([listed.logprobs[:, None], listed.top.logprobs], axis=1)
    known = (ids >= 0) & ~np.isnan(logprobs)
    for place in range(1, ids.shape[1]):
        named = (ids[:, :place] == ids[:, place : place + 1]) & known[:, :place]
        known[:, place] &= ~named.any(axis=1)
    return ids, np.where(known, np.minimum(logprobs, 0.0), -np.inf), known


def _terms(p: Array, log_p: Array, log_q: Array) -> Array:
    """p ln(p / q), 0 where p is 0. In logs, so that a q under the smallest float is not taken for 0."""
    with np.errstate(invalid="ignore"):
        return np.where(p > 0.0, p * (log_p - log_q), 0.0)
