"""Invariance probes: the same ids scored by two ways that must agree. Cold is not truth.

A fault may spoil the cold pass as well: a chunk boundary, a batch neighbour, a slot's last owner. So the same
question is asked cold in one request, and by another way: in several shorter requests that go on from each
other, with chunks that begin elsewhere, in one request with others, or once more after the server has evicted
what it knew. The control of a pair is the other way twice, cut or accompanied differently: it says how much
that way differs from itself. ``batch_decoding`` has one pair more, about what is generated. No cache that
load has written is asked about, and nothing is evicted for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from soak.oracle.batch_decoding import BatchDecoding
from soak.oracle.divergence import diverge
from soak.oracle.passes import Array, Passes, PassFailedError, Question, Scored
from soak.oracle.probe import PAIR_WORDS, ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.prober import Detecting, PassSeen, ProbeSettings, begun, ended
from soak.oracle.victims import Victim, Victims
from soak.plan.geometry import Geometry
from soak.plan.item import Segment
from soak.plan.words import Draw
from soak.sglang.exchange import TokenIds
from soak.sglang.session import Session

SHAPE = "invariance"
"""The shape in streams and metrics: it is about no traffic of the load's."""

_SHORTEST_STEP = 16  # tokens
_LEAST_SCORED = 16  # tokens; the ceilings look at so many
COMPANIONS = 7
"""Others in one request, at most: beside a prompt that is generated."""
_SCORED_BESIDE = 3  # at most beside one that is scored, as all are of its length

_REMEMBERED = 48  # cold passes that may be asked for again when they have been evicted


@dataclass(frozen=True, slots=True)
class _Before:
    """A cold pass of some time ago, in a namespace that nobody has used since, and who answered it."""

    namespace: str
    cold: Array
    at_s: float
    worker: str


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, the way that is held against cold, whose ids it has. before: the first time, where it was
    asked before."""

    kind: ResumeKind
    question: Question
    victim: Victim
    tail: Segment
    before: _Before | None = None


class Invariance:
    """Asks numbered invariance probes; everything drawn depends on (seed, nonce, number) alone.

    companions: most others in one request; remembered: answers that are kept until one of them is asked for
    again, when it may have been evicted. What the server evicts, and when, is its own affair.
    """

    def __init__(
        self,
        session: Session,
        victims: Victims,
        detecting: Detecting,
        geometry: Geometry,
        settings: ProbeSettings,
        *,
        seed: int,
        nonce: int,
        companions: int = COMPANIONS,
        remembered: int = _REMEMBERED,
        on_pass: Callable[[PassSeen], None] = lambda _: None,
    ) -> None:
        self._session, self._victims, self._detecting = session, victims, detecting
        self._geometry, self._settings = geometry, settings
        self._seed, self._nonce = seed, nonce
        self._companions = min(companions, COMPANIONS)
        self._decoding = BatchDecoding(
            geometry, seed=seed, nonce=nonce, tokens=settings.continuation, companions=self._companions
        )
        self._on_pass = on_pass
        self._kept = remembered
        self._remembered: deque[_Asked] = deque(maxlen=remembered)

    def forget(self) -> None:
        """Another server answers: nothing that was asked of the one before may be compared with it."""
        self._remembered.clear()

    async def probe(self, number: int) -> ProbeResult | None:
        """Invariance probe ``number``, or None where there are no ids yet to ask about."""
        draw = Draw(self._seed, "invariance", number)
        asked = self._chosen(number, draw)
        if asked is None:
            return None
        victim, question = asked.victim, asked.question
        passes = Passes(
            self._session,
            self._settings.timeout_s,
            lambda sent: self._on_pass(PassSeen(number, False, sent, victim, asked.tail)),
            worker="" if asked.before is None else asked.before.worker,
            rank=self._session.rank_of(victim.index),
            adapter=victim.adapter,
        )
        result = begun(number, victim, SHAPE, asked.kind, self._session)
        result.resume_boundary = question.start
        try:
            if asked.kind is ResumeKind.DECODE_BATCH:
                question = await self._decode(result, question.ids, passes, draw)
            elif question.start < 2 * _SHORTEST_STEP or len(question.ids) - question.start <= _LEAST_SCORED:
                raise PassFailedError(
                    ProbeOutcome.TOO_SHORT, f"{len(question.ids)} tokens cannot be asked in two ways"
                )
            elif asked.before is not None:
                await self._ask_again(result, question, passes, asked.before)
            else:
                namespace = await self._ask(result, question, passes, draw)
                before = _Before(namespace, result.cold, time.monotonic(), passes.worker)
                self._remembered.append(replace(asked, before=before))
            if self._detecting.wants_repeat(result) is not None:
                await self._confirm(result, question, passes, draw)
        except PassFailedError as failed:
            result.outcome, result.detail = failed.outcome, failed.detail
        result.worker = passes.worker  # whoever answered its passes: a fault may be one worker's own
        return ended(result, passes)

    def _chosen(self, number: int, draw: Draw) -> _Asked | None:
        """What to ask about, and by which other way. Before enough is remembered, nothing is asked again."""
        kind = draw.choice(list(PAIR_WORDS))
        if kind is ResumeKind.RECOMPUTED and len(self._remembered) >= self._kept:
            return replace(self._remembered.popleft(), kind=kind)
        victim = self._victims.long_one(number)
        if victim is None:
            return None
        tail = Segment("invariance-tail", number, 0, self._settings.tail)
        question = self._question(victim, tail)
        without = {
            ResumeKind.RECOMPUTED: True,
            ResumeKind.IN_A_BATCH: not self._companions,
            ResumeKind.DECODE_BATCH: not self._companions,
            ResumeKind.SHIFTED: question.start <= self._geometry.chunk,  # no chunk to begin elsewhere
        }
        return _Asked(ResumeKind.IN_STEPS if without.get(kind) else kind, question, victim, tail)

    def _question(self, victim: Victim, tail: Segment) -> Question:
        """The victim's ids and a tail of their own, scored over the tail and no more than a half of all."""
        own = tail.ids(self._seed, self._nonce, self._geometry)
        ids = np.concatenate([victim.ids, own])[: self._geometry.context_len - 1]
        scored = min(self._settings.max_scored, len(own), len(ids) // 2)
        return Question(ids, max(0, len(ids) - scored - 1))

    async def _decode(self, result: ProbeResult, ids: TokenIds, passes: Passes, draw: Draw) -> Question:
        """A prompt that begins as these ids do is continued in a batch and alone."""
        prompt = self._decoding.prompt(ids, draw)
        result.resume_boundary = len(prompt) - 1
        return await self._decoding.ask(result, prompt, passes, draw)

    async def _ask(self, result: ProbeResult, question: Question, passes: Passes, draw: Draw) -> str:
        """Cold, the other way and the other way once more, in a drawn order; cold's namespace."""
        steps, namespace, second = ["warm", "cold", "control"], passes.fresh(), result.warm
        while steps:
            step = steps.pop(draw.below(len(steps)))
            if step == "cold":
                scored = await passes.score(step, question.ids, question.start, namespace)
                _refuse_hit(step, scored)
                result.cold = question.comparable(step, scored)
            elif step == "warm":
                result.warm, result.ways = await self._other_way(result.kind, step, passes, question, draw)
            else:
                second, _ = await self._other_way(result.kind, step, passes, question, draw)
        result.divergence = diverge(result.warm, result.cold)
        result.control = diverge(second, result.warm)
        return namespace

    async def _ask_again(
        self, result: ProbeResult, question: Question, passes: Passes, before: _Before
    ) -> None:
        """Where the first answer's namespace has been evicted: the same there, and cold elsewhere."""
        age_s = time.monotonic() - before.at_s
        scored = await passes.score("warm", question.ids, question.start, before.namespace)
        if scored.cached:
            raise PassFailedError(
                ProbeOutcome.STILL_CACHED, f"after {age_s:.0f} s {scored.cached} tokens were still cached"
            )
        result.warm, result.cold = question.comparable("warm", scored), before.cold
        result.ways = f"{age_s:.0f} s after the first time"
        result.divergence = diverge(result.warm, result.cold)
        result.control = diverge(await passes.cold(question), result.cold)

    async def _confirm(self, result: ProbeResult, question: Question, passes: Passes, draw: Draw) -> None:
        """Both ways once more; a pass that fails now leaves the first result standing."""
        try:
            if result.kind is ResumeKind.DECODE_BATCH:
                await self._decoding.confirm(result, question, passes, draw)
                return
            cold = await passes.cold(question, "confirming cold")
            result.cold_repeat = diverge(cold, result.cold)
            if result.kind is ResumeKind.RECOMPUTED:
                return  # it cannot be evicted once more at will
            warm, _ = await self._other_way(result.kind, "confirming warm", passes, question, draw)
        except PassFailedError as failed:
            if failed.outcome.hard_alarm:
                raise
            result.detail = f"no confirming pair: {failed.detail}"
            return
        result.confirmation = diverge(warm, cold)
        result.confirmation_cold = result.cold_repeat

    async def _other_way(
        self, kind: ResumeKind, what: str, passes: Passes, question: Question, draw: Draw
    ) -> tuple[Array, str]:
        """The logprobs, and how they were asked for."""
        if kind is ResumeKind.IN_A_BATCH:
            return await self._in_a_batch(what, passes, question, draw)
        if kind is ResumeKind.SHIFTED:
            last = self._geometry.chunk - 1
            ends = [draw.between(min(self._grid, last), last)]
        else:
            ends = self._ends(question.start, draw)
        return await in_steps(what, passes, question, ends), f"after steps to {', '.join(map(str, ends))}"

    @property
    def _grid(self) -> int:
        """The shortest step that surely leaves something behind to go on from."""
        return max(_SHORTEST_STEP, self._geometry.state_grid or 0, self._geometry.page)

    def _ends(self, start: int, draw: Draw) -> list[int]:
        """Where steps end: each shorter than a chunk, the last where the scored part begins or before."""
        chunk = self._geometry.chunk
        least = max(self._grid, chunk // 4)
        ends: list[int] = []
        while start - (ends[-1] if ends else 0) > least:
            ends.append((ends[-1] if ends else 0) + draw.between(least, max(least, chunk * 3 // 4)))
        if not ends or ends[-1] > start:
            ends[-1:] = [start]
        return ends

    async def _in_a_batch(
        self, what: str, passes: Passes, question: Question, draw: Draw
    ) -> tuple[Array, str]:
        count = draw.between(1, min(_SCORED_BESIDE, self._companions))
        room = self._geometry.context_len - 1
        lengths = [
            draw.between(question.start + 2, min(room, len(question.ids) + self._grid)) for _ in range(count)
        ]
        keys = [draw.word() % (1 << 62) for _ in range(count)]
        others = tuple(
            Segment("invariance-companion", key, 0, length).ids(self._seed, self._nonce, self._geometry)
            for key, length in zip(keys, lengths, strict=True)
        )
        place = draw.between(0, count)
        scored = await passes.score_beside(
            what, question.ids, question.start, passes.fresh(), others=others, place=place
        )
        _refuse_hit(what, scored)
        return question.comparable(what, scored), f"prompt {place + 1} of {count + 1} in one request"


def _refuse_hit(what: str, scored: Scored) -> None:
    if scored.cached:
        raise PassFailedError(
            ProbeOutcome.COLD_HIT, f"the {what} pass in a fresh namespace resumed at {scored.cached}"
        )


async def in_steps(what: str, passes: Passes, question: Question, ends: Sequence[int]) -> Array:
    """Write the ids up to each end, one request after the other, then score the rest after what they left.

    Raises PassFailedError, with BOUNDARY_MOVED where the server kept nothing of them.
    """
    namespace = passes.fresh()
    for end in ends:
        await passes.generate("step", question.ids[:end], 0, 0.0, namespace)
    scored = await passes.score(what, question.ids, question.start, namespace)
    if not scored.cached:
        raise PassFailedError(
            ProbeOutcome.BOUNDARY_MOVED, f"the {what} pass found nothing of {len(ends)} steps cached"
        )
    return question.comparable(what, scored)
