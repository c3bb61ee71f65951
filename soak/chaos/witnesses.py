"""Prefixes of our own that are asked about before and after: are they there, and do they still score so?

What a prefix scores cold is kept from before the first action, so that a server which forgot can be told from
one that remembers wrongly. The questions are the oracle's passes; it keeps no load and raises no alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

import numpy as np

from soak.drive.doing import Own, drawn_ids
from soak.oracle.divergence import Divergence, diverge
from soak.oracle.passes import Array, Passes, PassFailedError, Question
from soak.sglang.exchange import TokenIds
from soak.sglang.session import Session

TAIL = 24  # tokens after the prefix that are scored
_AT_ONCE = 4
_LEAST_SCORE = 0.02  # mean of min(|d|, 1)^2 / 2: about 0.2 nats at every token
_TIMES_FLOOR = 8.0
_COLDS_AGREE = 0.25  # of a difference: two cold passes further apart than that say nothing


@dataclass(frozen=True, slots=True)
class Witness:
    """A prefix and a tail. cold: what the tail scored before any action; None where nobody asked before."""

    name: str
    prefix: TokenIds
    tail: TokenIds
    cold: Array | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of asking. cached, of them host: tokens that the server resumed from, before anything else.

    off: what differed, empty if nothing; failed: why it could not be asked, empty if it could.
    """

    name: str
    cached: int = 0
    host: int = 0
    score: float = 0.0
    max_abs: float = 0.0
    off: str = ""
    failed: str = ""


class Witnesses:
    """Plants and asks. max_abs_d: the bound that the config declares, None to go by what was seen before."""

    def __init__(
        self, session: Session, ordinary: tuple[int, int], timeout_s: float, max_abs_d: float | None
    ) -> None:
        self._session, self._ordinary, self._timeout_s = session, ordinary, timeout_s
        self._max_abs_d = max_abs_d
        self._floors: list[float] = []
        self.planted: list[Witness] = []

    async def plant(self, seed: int, count: int, tokens: int) -> list[Seen]:
        """Write so many prefixes, and ask about each for the first time: what is seen is the floor."""
        return await all_seen([self._plant(seed, number, tokens) for number in range(count)])

    async def _plant(self, seed: int, number: int, tokens: int) -> Seen:
        prefix = drawn_ids(seed, number, tokens, self._ordinary)
        tail = drawn_ids(seed + 1, number, TAIL, self._ordinary)
        name, passes = f"witness {number}", self._passes()
        try:
            await passes.generate("plant", prefix, 0, 0.0, None)
            cold = await passes.cold(Question(np.concatenate([prefix, tail]), tokens))
        except PassFailedError as failed:
            return Seen(name, failed=failed.detail)
        witness = Witness(name, prefix, tail, cold)
        self.planted.append(witness)
        seen = await self.ask(witness)
        if not seen.failed:
            self._floors.append(seen.score)
        return seen

    async def ask(self, witness: Witness) -> Seen:
        """Where it resumes, and whether warm is cold: cold now, and cold as it was before."""
        ids, start = np.concatenate([witness.prefix, witness.tail]), len(witness.prefix)
        passes = self._passes()
        try:
            cached, host = await passes.locate(ids, None)
            question = Question(ids, start)
            warm = question.comparable("warm", await passes.score("warm", ids, start, None))
            cold = await passes.cold(question)
            found = diverge(warm, cold)
            off = await self._off(found, passes, question, cold, "warm against cold")
            if not off and witness.cold is not None:
                off = await self._off(
                    diverge(warm, witness.cold), passes, question, cold, "warm against cold of before"
                )
        except PassFailedError as failed:
            hard = failed.detail if failed.outcome.hard_alarm else ""
            return Seen(witness.name, off=hard, failed="" if hard else failed.detail)
        return Seen(witness.name, cached, host, found.score, found.max_abs, off)

    async def ask_served(self, name: str, own: Own) -> Seen:
        """Whether what a request was told while it generated is what a cold prefill of the same says."""
        served, output = own.answer.output_logprobs, own.answer.output_ids
        if not own.answer.ok or not len(output) or len(served) != len(output):
            return Seen(
                name, failed=f"it came to {own.answer.outcome.value}: {own.answer.detail}".rstrip(": ")
            )
        ids, start = np.concatenate([own.ids, output]), len(own.ids) - 1
        passes, question = self._passes(), Question(ids, start)
        try:
            cold = await passes.cold(question)
            found = diverge(served, cold)
            off = await self._off(found, passes, question, cold, "served against cold")
        except PassFailedError as failed:
            hard = failed.detail if failed.outcome.hard_alarm else ""
            return Seen(name, off=hard, failed="" if hard else failed.detail)
        return Seen(name, score=found.score, max_abs=found.max_abs, off=off)

    def of(self, name: str, ids: TokenIds) -> Witness:
        """A question about a prefix that somebody else wrote."""
        return Witness(name, ids, drawn_ids(len(ids), 0, TAIL, self._ordinary))

    @property
    def bound(self) -> float:
        """Mean score from which on two passes differ, where no bound is declared."""
        floor = float(np.median(self._floors)) if self._floors else 0.0
        return max(_LEAST_SCORE, _TIMES_FLOOR * floor)

    async def _off(
        self, found: Divergence, passes: Passes, question: Question, cold: Array, what: str
    ) -> str:
        """Words if it differs by more than noise, and a second cold pass agrees with the first."""
        over = found.score > self.bound if self._max_abs_d is None else found.max_abs > self._max_abs_d
        if not over:
            return ""
        again = diverge(await passes.cold(question, "cold repeat"), cold)
        if again.score > _COLDS_AGREE * found.score:
            return ""
        return (
            f"{what}: up to {found.max_abs:.3g} nats off, median {found.median_abs:.3g}, over {found.tokens} "
            f"tokens; a repeated cold pass was {again.max_abs:.3g} off"
        )

    def _passes(self) -> Passes:
        return Passes(self._session, self._timeout_s)


async def all_seen(asked: Sequence[Awaitable[Seen]]) -> list[Seen]:
    """A few at a time."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(ask: Awaitable[Seen]) -> Seen:
        async with room:
            return await ask

    return list(await asyncio.gather(*(one(ask) for ask in asked)))
