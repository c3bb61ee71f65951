"""The plan: (seed, resolved spec, index) -> items, and the walk over one shard's share of the indices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.plan.arrivals import arrivals, walk
from soak.plan.item import Item, Prompt
from soak.plan.shapes import MAKERS, Scene
from soak.plan.spec import ResolvedSpec
from soak.plan.words import Draw


class Plan:
    """A pure function of its arguments; the nonce salts token ids and nothing else."""

    def __init__(self, seed: int, spec: ResolvedSpec, nonce: int = 0) -> None:
        self.seed, self.spec, self.nonce = seed, spec, nonce
        self._arrivals = arrivals(spec.arrivals, spec.rate, seed, spec.burst)
        self._names = tuple(name for name, weight in spec.weights if weight > 0)
        self._weights = tuple(weight for _, weight in spec.weights if weight > 0)

    def shape_of(self, index: int) -> str:
        """The shape that index i has."""
        return self._names[Draw(self.seed, "shape", index).weighted(self._weights)]

    def items(self, index: int) -> tuple[Item, ...]:
        """The items of index i, step by step."""
        scene = Scene(self.seed, self.spec, index, self._arrivals.at_us(index))
        return MAKERS[self.shape_of(index)](scene)

    def ids(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        """The token ids of a prompt's own segments, shape (length,)."""
        return prompt.ids(self.seed, self.nonce, self.spec.geometry)

    def walk(self, shard: int = 0, shards: int = 1, first: int = 0) -> Iterator[tuple[Item, ...]]:
        """The items of the indices that a shard owns (those congruent to it), in order, without end."""
        start = first + (shard - first) % shards
        for index, _ in walk(self._arrivals, start, shards):
            yield self.items(index)

    def row(self, item: Item) -> dict[str, Any]:
        """An item as a JSON row, with the length and a digest of the ids of every prompt."""
        ids = [self.ids(p) for p in item.prompts]
        return item.as_dict() | {
            "lengths": [len(i) for i in ids],
            "digests": [digest(i) for i in ids],
        }


def digest(ids: npt.NDArray[np.int32]) -> str:
    """Sixteen hex digits that name a row of token ids, the same on every machine."""
    return hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=8).hexdigest()
