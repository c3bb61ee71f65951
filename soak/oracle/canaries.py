"""Canaries: is an answer that of another request? By the answers that frozen prompts gave before. Pure.

No answer is known beforehand, as nobody knows the model: a canary's answer is what it gave most often, and at
least twice, in whatever company. A greedy answer may differ from itself by noise, so that alone proves
nothing; that it is another canary's, token by token, does. It sends nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from soak.sglang.exchange import TokenIds

LEAST = 8
"""Tokens; two shorter answers may be the same by chance."""

_VARIED = 4  # different tokens that an answer has at least: a model that repeats itself answers all alike
_KEPT = 32  # different answers of one canary

Answer = tuple[int, ...]
T = TypeVar("T")


@dataclass(slots=True)
class _Book(Generic[T]):
    """What one canary was answered: how often each, where first, and what was told already."""

    seen: Counter[Answer] = field(default_factory=Counter)
    where: dict[Answer, tuple[str, T]] = field(default_factory=dict)
    told: set[Answer] = field(default_factory=set)

    def own(self) -> Answer | None:
        """Its answer: the most frequent one, seen twice and more often than any other; None until then."""
        ranked = self.seen.most_common(2)
        if not ranked or ranked[0][1] < 2 or (len(ranked) > 1 and ranked[1][1] == ranked[0][1]):
            return None
        return ranked[0][0]


class Canaries(Generic[T]):
    """All answers of all canaries, by key; bounded. T: what an answer is part of, handed back as it came."""

    def __init__(self) -> None:
        self._books: dict[int, _Book[T]] = {}
        self.judged = 0  # answers of canaries whose own answer was known

    def observe(self, key: int, ids: TokenIds, where: str, of: T) -> list[tuple[str, T]]:
        """One answer; what is wrong with it, or by now with an earlier one: in words, and of what it is."""
        if len(ids) < LEAST or len(np.unique(ids)) < _VARIED:
            return []
        answer: Answer = tuple(ids.tolist())
        book = self._books.setdefault(key, _Book())
        if answer in book.seen or len(book.seen) < _KEPT:
            book.seen[answer] += 1
            book.where.setdefault(answer, (where, of))
        owners: dict[Answer, list[int]] = {}
        for other, held in self._books.items():
            own = held.own()
            if own is not None:
                owners.setdefault(own, []).append(other)
        self.judged += book.own() is not None
        return [
            found
            for other, held in self._books.items()
            if (own := held.own()) is not None and len(owners[own]) == 1
            for found in self._foreign(other, held, own, owners)
        ]

    @staticmethod
    def _foreign(
        key: int, book: _Book[T], own: Answer, owners: dict[Answer, list[int]]
    ) -> list[tuple[str, T]]:
        found = []
        for answer in book.seen:
            whose = owners.get(answer, [])
            if answer == own or len(whose) != 1 or answer in book.told:
                continue
            book.told.add(answer)
            where, of = book.where[answer]
            words = (
                f"{where}: canary {key} was answered with the answer of canary {whose[0]}, {len(answer)} "
                f"tokens, where {book.seen[own]} times it gave its own"
            )
            found.append((words, of))
        return found

    def clear(self) -> None:
        """Another server, maybe another model: no answer is known any more."""
        self._books.clear()
