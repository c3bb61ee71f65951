"""The plan: (seed, resolved spec, index) -> items, and the walk over one shard's share of the indices."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.plan.adaptive import Decision, refuse_beyond
from soak.plan.arrivals import Arrivals, Burst, arrivals
from soak.plan.item import Item, Prompt
from soak.plan.shapes import MAKERS, Scene
from soak.plan.spec import ResolvedSpec
from soak.plan.words import Draw


@dataclass(frozen=True, slots=True)
class _Piece:
    """The plan from index ``first`` on, which starts at ``starts_us``."""

    first: int
    spec: ResolvedSpec
    process: Arrivals
    starts_us: int
    names: tuple[str, ...]
    weights: tuple[int, ...]

    @classmethod
    def of(cls, first: int, spec: ResolvedSpec, process: Arrivals, starts_us: int) -> _Piece:
        chosen = [(name, weight) for name, weight in spec.weights if weight > 0]
        names, weights = tuple(name for name, _ in chosen), tuple(weight for _, weight in chosen)
        return cls(first, spec, process, starts_us, names, weights)

    def at_us(self, index: int) -> int:
        """When an index of this piece is meant to start."""
        return self.starts_us + self.process.at_us(index - self.first)

    def shape_of(self, seed: int, index: int) -> str:
        """The shape of an index of this piece."""
        if len(self.names) == 1:
            return self.names[0]  # nothing is drawn from this stream but the shape
        return self.names[Draw(seed, "shape", index).weighted(self.weights)]


class Plan:
    """A pure function of its arguments; the nonce salts token ids and nothing else.

    decisions: those recorded so far, of an adaptive spec; ``follow`` adds one, which changes nothing before
    its first index. Raises ValueError for decisions that are out of order or beyond what the spec allows.
    """

    def __init__(
        self, seed: int, spec: ResolvedSpec, nonce: int = 0, decisions: Iterable[Decision] = ()
    ) -> None:
        self.seed, self.spec, self.nonce = seed, spec, nonce
        self._decisions: list[Decision] = []
        process = arrivals(spec.arrivals, spec.rate, seed, spec.burst)
        self._pieces = [_Piece.of(0, spec, process, 0)]
        for decision in decisions:
            self.follow(decision)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """In the order in which they were taken."""
        return tuple(self._decisions)

    def follow(self, decision: Decision) -> None:
        """Go by this from its first index on. The mean rate stays."""
        refuse_beyond(decision, self.spec)
        if decision.first <= self._pieces[-1].first:
            raise ValueError(
                f"decision: from index {decision.first} on, and the one before it from "
                f"{self._pieces[-1].first} on"
            )
        spec = replace(
            self.spec, burst=decision.burst, max_context=decision.context, weights=decision.weights
        )
        process = Burst(Fraction(self.spec.rate), decision.together)
        starts_us = self.at_us(decision.first)
        self._decisions.append(decision)
        self._pieces.append(_Piece.of(decision.first, spec, process, starts_us))

    def decision_at(self, index: int) -> int:
        """The number of the decision by which index i is planned, from 1 on; 0 before any."""
        return bisect_right(self._pieces, index, key=lambda piece: piece.first) - 1

    def at_us(self, index: int) -> int:
        """When index i is meant to start, in microseconds from the start of the run."""
        return self._pieces[self.decision_at(index)].at_us(index)

    def shape_of(self, index: int) -> str:
        """The shape that index i has."""
        return self._pieces[self.decision_at(index)].shape_of(self.seed, index)

    def items(self, index: int) -> tuple[Item, ...]:
        """The items of index i, step by step."""
        piece = self._pieces[self.decision_at(index)]
        scene = Scene(self.seed, piece.spec, index, piece.at_us(index))
        return MAKERS[piece.shape_of(self.seed, index)](scene)

    def ids(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        """The token ids of a prompt's own segments, shape (length,)."""
        return prompt.ids(self.seed, self.nonce, self.spec.geometry)

    def walk(self, shard: int = 0, shards: int = 1, first: int = 0) -> Iterator[tuple[Item, ...]]:
        """The items of the indices that a shard owns (those congruent to it), in order, without end."""
        for index in count(first + (shard - first) % shards, shards):
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
