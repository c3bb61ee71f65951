"""Recall of a frozen fact, cold and from the cache. Pure arithmetic, nats; the bars are fixed, never learned.

An answer is recalled exactly if each of its tokens is the likeliest one after the tokens before it, which is
what greedy decoding would have given; by logprob if a token of it has a mean logprob over RECALLED.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]

RECALLED = float(np.log(0.5))
"""Mean nats a token of the answer, at least: on the (geometric) average likelier than not."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """One side. logprob: mean over the answer's tokens, nats; exact: whether greedy decoding gives it."""

    logprob: float
    exact: bool

    @property
    def by_logprob(self) -> bool:
        """Whether the answer is likely enough."""
        return self.logprob >= RECALLED


@dataclass(frozen=True, slots=True)
class Recall:
    """Both sides of one needle. depth: per cent of the document before the fact; length: its tokens."""

    depth: int
    length: int
    warm: Recalled
    cold: Recalled

    @property
    def forgotten(self) -> bool:
        """Whether the cache lost what a cold pass recalls, by either grade."""
        exact = self.cold.exact and not self.warm.exact
        return exact or (self.cold.by_logprob and not self.warm.by_logprob)


def recalled(logprobs: Array, best: Ids, answer: Ids) -> Recalled:
    """One side from its last places: logprobs and likeliest ids, both of the answer's shape (n,).

    Raises ValueError for other shapes, or logprobs that are not finite.
    """
    if not (logprobs.shape == best.shape == answer.shape) or answer.size == 0:
        raise ValueError(f"an answer of {answer.shape} cannot be graded by {logprobs.shape}, {best.shape}")
    if not np.isfinite(logprobs).all():
        raise ValueError("a logprob is not finite")
    return Recalled(float(logprobs.mean()), bool(np.array_equal(best, answer)))
