"""Victims: prefixes that load has left in the server's cache, chosen for probes by age as well as recency.

A stale write lands in somebody else's old checkpoint, so the newest prefixes alone would show nothing.
Memory is bounded by tokens; what is dropped is drawn, so that old victims survive.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from soak.plan.item import WrittenBy
from soak.plan.words import Draw
from soak.sglang.exchange import Logprobs, TokenIds

_RECENT = 16
_MAX_USES = 2
_YOUNGEST_S = 4.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What to ask a victim for. depth: per cent of it before the fact; question, answer: shape (n,)."""

    depth: int
    question: TokenIds
    answer: TokenIds


@dataclass(slots=True)
class Victim:
    """One cached prefix. ids: all its tokens, the first ``prompt_len`` of them sent, the rest generated.

    ``namespace``: the extra_key it lives in, None for the shared one; ``adapter``: the LoRA adapter that
    wrote it, None for none. ``served``: the logprobs that the server gave while it generated, shape
    (len(ids) - prompt_len,), None if they were not asked for.
    """

    ids: TokenIds
    prompt_len: int
    shape: str
    written_by: WrittenBy
    index: int
    step: int
    part: int
    written_s: float
    temperature: float = 0.0
    retractions: int = 0
    namespace: str | None = None
    adapter: str | None = None
    served: Logprobs | None = None
    needle: Asked | None = None
    uses: int = 0
    worker: str = ""  # whose cache it is in, where a router or a data-parallel server says so
    due_s: float = -math.inf  # on the clock of written_s: not to be asked about before


class Victims:
    """A bounded set of victims, oldest first.

    oldest_s: each is left alone until it has a drawn age of 4 seconds to about this, every doubling equally
    likely; None: each may be asked about at once.
    """

    def __init__(
        self,
        seed: int,
        max_tokens: int = 2_000_000,
        *,
        oldest_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seed = seed
        self._doublings = (
            None if oldest_s is None else max(1, math.floor(math.log2(max(2.0, oldest_s / _YOUNGEST_S))))
        )
        self._clock = clock
        self._max_tokens = max_tokens
        self._held: list[Victim] = []
        self._recipes: dict[WrittenBy, deque[Victim]] = {}
        self._poor_recipes: dict[WrittenBy, deque[Victim]] = {}
        self._tokens = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, victim: Victim, *, poor_recipe: bool = False) -> None:
        """Keep one more; over the bound, drawn ones that are not among the newest go.

        poor_recipe: controls copy it only where nothing else was written so.
        """
        recipes = self._poor_recipes if poor_recipe else self._recipes
        recipes.setdefault(victim.written_by, deque(maxlen=_RECENT)).append(victim)
        victim.due_s = self._next_due(victim, victim.written_s)
        self._held.append(victim)
        self._tokens += len(victim.ids)
        while self._tokens > self._max_tokens and len(self._held) > 1:
            older = max(1, len(self._held) - _RECENT)
            self._dropped += 1
            self._remove(Draw(self._seed, "victim-drop", self._dropped).below(older))

    @property
    def ready(self) -> bool:
        """Whether any may be asked about now."""
        if self._doublings is None:
            return bool(self._held)
        now = self._clock()
        return any(victim.due_s <= now for victim in self._held)

    def _next_due(self, victim: Victim, since_s: float) -> float:
        if self._doublings is None:
            return victim.due_s
        draw = Draw(self._seed, f"victim-age-{victim.step}-{victim.part}-{victim.uses}", victim.index)
        least_ms = int(_YOUNGEST_S * 1000) << draw.below(self._doublings)
        return since_s + draw.between(least_ms, 2 * least_ms) / 1000

    def choose(self, number: int) -> Victim | None:
        """The victim of probe ``number``: of a drawn shape; half of the draws among its newest, half any."""
        now = self._clock()
        due = [place for place, v in enumerate(self._held) if v.due_s <= now]
        if not due:
            return None
        draw = Draw(self._seed, "victim", number)
        shape = draw.choice(sorted({self._held[place].shape for place in due}))
        places = [place for place in due if self._held[place].shape == shape]
        place = draw.choice(places[-_RECENT:] if draw.chance(500) else places)
        victim = self._held[place]
        victim.uses += 1
        if victim.uses >= _MAX_USES:
            self._remove(place)
        else:
            victim.due_s = self._next_due(victim, now)
        return victim

    def has(self, written_by: WrittenBy) -> bool:
        """Whether any was ever written so, and is no poor recipe."""
        return written_by in self._recipes

    def recipe(self, number: int, written_by: WrittenBy) -> Victim | None:
        """One of the latest victims to copy the writing of, used up or evicted or not; None without any.

        Controls would otherwise end where probes have used all victims of a kind up. Where nothing was left
        to be written by prefill alone, what decode went on from was still prefilled, and resumes there.
        """
        written = self._recipes.get(written_by) or self._poor_recipes.get(written_by)
        if written is None and written_by is WrittenBy.PREFILL:
            written = self._recipes.get(WrittenBy.DECODE)
        return Draw(self._seed, "recipe", number).choice(written) if written else None

    def long_one(self, number: int) -> Victim | None:
        """One of all that are held or remembered, cached or not: of two drawn ones the longer; None without.

        It is left where it is: what is asked about it needs its ids alone.
        """
        every = [*self._held, *(victim for kept in self._recipes.values() for victim in kept)]
        if not every:
            return None
        draw = Draw(self._seed, "invariance-ids", number)
        return max(draw.choice(every), draw.choice(every), key=lambda victim: len(victim.ids))

    def forget(self, victim: Victim) -> None:
        """It is no longer cached."""
        for place, held in enumerate(self._held):
            if held is victim:
                self._remove(place)
                return

    def clear(self) -> None:
        """The server's cache is gone (a restart)."""
        self._held.clear()
        self._tokens = 0

    def _remove(self, place: int) -> None:
        self._tokens -= len(self._held.pop(place).ids)
