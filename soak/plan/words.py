"""Keyed randomness: Philox raw words and our own integer transforms of them.

A draw depends on (seed, nonce, purpose, index) and on nothing else: no clock, no worker, no earlier draw.
NumPy promises the raw words of a bit generator for all versions, but not its distributions, so everything
after the words is integer arithmetic of our own: the same bytes on every machine and with every NumPy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

_WORD = 1 << 64
_BATCH = 8  # two Philox blocks: enough for most draws of one purpose
_EMPTY = (0, 0, 0, 0)
_idle: list[np.random.Philox] = []  # making one costs seven times what setting its state does


@lru_cache(maxsize=512)
def _purpose_key(purpose: str, nonce: int) -> int:
    text = f"{purpose}\x00{nonce}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def raw_words(seed: int, purpose: str, index: int, count: int, nonce: int = 0) -> npt.NDArray[np.uint64]:
    """``count`` uint64 words of the stream (seed, nonce, purpose, index).

    The generator is Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
    The key is (seed, hash of purpose and nonce), the counter's second word is the index, so that every index
    has 2^64 blocks of its own.
    """
    key = [seed % _WORD, _purpose_key(purpose, nonce)]
    try:
        generator = _idle.pop()  # for this call alone, whichever thread it is in
    except IndexError:
        generator = np.random.Philox(0)
    state: Any = {  # NumPy takes any sequence of numbers, and plain ones soonest
        "bit_generator": "Philox",
        "state": {"counter": (0, index, 0, 0), "key": key},
        "buffer": _EMPTY,
        "buffer_pos": len(_EMPTY),  # nothing of what was drawn before is left
        "has_uint32": 0,
        "uinteger": 0,
    }
    generator.state = state
    words = generator.random_raw(count)
    _idle.append(generator)
    return words


class Draw:
    """A short sequence of draws for one purpose at one index; integer results only."""

    __slots__ = ("_index", "_nonce", "_purpose", "_seed", "_taken", "_words")

    def __init__(self, seed: int, purpose: str, index: int, nonce: int = 0) -> None:
        self._seed, self._purpose, self._index, self._nonce = seed, purpose, index, nonce
        self._words: Sequence[int] = ()
        self._taken = 0

    def word(self) -> int:
        """The next 64-bit word."""
        taken = self._taken
        if taken == len(self._words):
            count = max(_BATCH, 2 * taken)
            self._words = raw_words(self._seed, self._purpose, self._index, count, self._nonce).tolist()
        self._taken = taken + 1
        return self._words[taken]

    def below(self, n: int) -> int:
        """Uniform in [0, n), by multiply and shift (bias under n / 2^64)."""
        if n < 1:
            raise ValueError(f"below({n}): nothing to choose from")
        return (self.word() * n) >> 64

    def between(self, low: int, high: int) -> int:
        """Uniform in [low, high], both ends included."""
        return low + self.below(high - low + 1)

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, uniformly."""
        return options[self.below(len(options))]

    def weighted(self, weights: Sequence[int]) -> int:
        """An index into ``weights`` with probability proportional to its (integer) weight."""
        ticket = self.below(sum(weights))
        for place, weight in enumerate(weights):
            ticket -= weight
            if ticket < 0:
                return place
        raise AssertionError("a ticket below the sum always finds its place")

    def chance(self, per_mille: int) -> bool:
        """True with probability per_mille / 1000."""
        return self.below(1000) < per_mille
