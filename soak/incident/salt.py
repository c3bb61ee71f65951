"""Other token ids of the same pattern, so that a replay never hits what an earlier one left behind. Pure.

A salt is a bijection of the ordinary ids onto themselves. Two prompts that share n leading ids share exactly
n after it, lengths stay, special ids stay: all that a radix cache, a scheduler or a captured graph can tell
two traces apart by is kept, and nothing that was cached before is met. What does change is what the model
makes of the ids: a fault that needs certain token values wants the ids as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.plan.words import raw_words
from soak.sglang.exchange import TokenIds


@dataclass(frozen=True, slots=True)
class Salt:
    """table: shape (high - low,), the new id of every ordinary id; ids outside [low, high) stay."""

    number: int
    low: int
    table: TokenIds

    def __call__(self, ids: TokenIds) -> TokenIds:
        """The ids under this salt, a new array of the same shape."""
        salted = np.array(ids, np.int32)
        ordinary = (salted >= self.low) & (salted < self.low + len(self.table))
        salted[ordinary] = self.table[salted[ordinary] - self.low]
        return salted


def salt(number: int, ordinary: tuple[int, int]) -> Salt:
    """The bijection of that number over the ids [low, high); 0 leaves every id as it is.

    The order of Philox words, so the same number gives the same ids on every machine.
    """
    low, high = ordinary
    places = np.arange(low, high, dtype=np.int32)
    if number:
        places = places[np.argsort(raw_words(number, "replay-salt", 0, high - low), kind="stable")]
    return Salt(number, low, places)
