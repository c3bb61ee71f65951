"""Asks the question of a case once more: locate, warm, cold, and what says how noisy the answer is.

The first pair is asked beside the load that ran when the case was asked; a second pair, the repeated cold
pass and the control follow in quiet. Both pairs count: it can be the passes themselves that set a fault off.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field

import numpy as np

from soak.incident.cuts import case_share
from soak.incident.foreign import foreign_answers
from soak.incident.judge import Measured
from soak.incident.pairs import Pair, alone, ask_pair
from soak.incident.player import Player
from soak.incident.trace import Case
from soak.oracle.controls import make_control
from soak.oracle.divergence import Divergence, diverge
from soak.oracle.passes import Array, Passes, PassFailedError, Question
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.oracle.victims import Victim
from soak.plan.item import WrittenBy
from soak.sglang.exchange import Answer, Outcome, TokenIds

_MOST_FOREIGN = 3  # answers of others that are told


@dataclass(slots=True)
class Asking:
    """The question of one replay; first ``plant``, then ``beside`` and ``quiet``, then ``measured``."""

    player: Player
    timeout_s: float
    noise: bool = True
    question: Question | None = None
    warm: Array | None = None
    cold: Array | None = None
    control: Array | None = None
    asked_at_us: int = 0
    _pairs: list[Divergence] = field(default_factory=list)
    _colds: list[Divergence] = field(default_factory=list)
    _control: Divergence | None = None
    _hard: ProbeOutcome | None = None
    _notes: list[str] = field(default_factory=list)

    @property
    def _case(self) -> Case:
        return self.player.trace.case

    @property
    def _namespace(self) -> str | None:
        return self.player.namespace(self._case.namespace)

    def _passes(self) -> Passes:
        return Passes(self.player.session, self.timeout_s, adapter=self._case.adapter or None)

    @property
    def _askable(self) -> bool:
        return len(self._case.ids) - self._case.start >= 2

    async def plant(self) -> None:
        """Write the prefix of a case whose victim is not in the trace, by prefill."""
        if self._case.victim is None and self._askable and not self._case.kind.invariance:
            await self._guarded(self._write_prefix())

    async def _write_prefix(self) -> None:
        prefix = self.player.salt(self._case.ids[: self._case.start])
        await self.player.gate(len(prefix))
        await self._passes().generate("plant", prefix, 0, 0.0, self._namespace)

    async def beside(self) -> None:
        """The first pair, while load runs as it did."""
        if self._case.victim is not None:
            await self.player.until_ended(self._case.victim)
        if self._askable:
            await self._guarded(self._first_pair())

    async def quiet(self) -> None:
        """The second pair, the repeated cold pass and the control, after all load."""
        if self._case.outcome is ProbeOutcome.BROKEN_INVARIANT and self._hard is None:
            await self._guarded(self._known_answers())
        if not self._askable or self._hard is not None:
            return
        if self.warm is None:
            await self._guarded(self._first_pair())
        if self.warm is not None and self._hard is None:
            if self.noise:
                await self._guarded(self._noise())
            await self._guarded(self._second_warm())

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except PassFailedError as failed:
            if failed.outcome.hard_alarm:
                self._hard = failed.outcome
            self._notes.append(failed.detail)

    async def _first_pair(self) -> None:
        passes = self._passes()
        self.asked_at_us = self.player.now_us()
        if self._case.kind.invariance:
            await self._two_ways(passes)
            return
        whole = await self._ids(passes)
        await self.player.gate(2 * len(whole))
        boundary, _ = await passes.locate(whole, self._namespace)
        if boundary == 0:
            raise PassFailedError(
                ProbeOutcome.EVICTED, "nothing of the prefix is cached: the locate pass had no hit"
            )
        wrote = case_share(self.player.trace) if self._case.victim is not None else self._case.start
        if boundary > wrote:
            # else a trace could be cut down to nothing: an earlier pass of the question had written it
            raise PassFailedError(
                ProbeOutcome.BOUNDARY_MOVED,
                f"resumed at {boundary}, past the {wrote} tokens that the trace wrote: "
                "at what the question left",
            )
        scored = len(self._case.ids) - self._case.start - 1
        ids = whole[: boundary + 1 + scored]
        if len(ids) - boundary < 2:
            raise PassFailedError(
                ProbeOutcome.TOO_SHORT, f"{len(ids)} tokens, resumed at {boundary}: nothing to score"
            )
        question = Question(ids, boundary)
        warm = await self._score_warm(passes, question)
        self.cold = await passes.cold(question)
        self.question, self.warm = question, warm
        self._pairs.append(diverge(warm, self.cold))

    async def _two_ways(self, passes: Passes) -> None:
        """An invariance pair: nothing that load wrote has a part in it. Raises PassFailedError."""
        made = await ask_pair(passes, self.player, len(self._pairs))
        self.question, self.warm, self.cold = made.question, made.warm, made.cold
        self._pairs.append(made.divergence)

    async def _known_answers(self) -> None:
        """An alarm of another's answer: does a canary of the trace, or a schema, have another's again?"""
        words = await foreign_answers(self._passes(), self.player)
        if words:
            self._hard = ProbeOutcome.BROKEN_INVARIANT
            self._notes[:] = words[:_MOST_FOREIGN]

    async def _score_warm(self, passes: Passes, question: Question) -> Array:
        scored = await passes.score("warm", question.ids, question.start, self._namespace)
        if scored.cached != question.start:
            raise PassFailedError(
                ProbeOutcome.BOUNDARY_MOVED,
                f"the warm pass resumed at {scored.cached}, the locate pass at {question.start}",
            )
        return question.comparable("warm", scored)

    async def _ids(self, passes: Passes) -> TokenIds:
        """The case's ids in this replay: what its victim wrote this time, and the tail after it."""
        case, player = self._case, self.player
        share = case_share(player.trace)
        prefix, tail = player.salt(case.ids[:share]), player.salt(case.ids[share:])
        if case.victim is not None:
            written = player.written(case.victim)
            if written is None or len(written) < share:
                answer = player.answers[case.victim]
                came_to = (
                    "was not sent" if answer is None else f"came to {answer.outcome.value}: {answer.detail}"
                )
                raise PassFailedError(
                    ProbeOutcome.REQUEST_FAILED, f"the request that writes the prefix {came_to}"
                )
            prefix = written[:share]
        else:
            prefix, tail = player.salt(case.ids[: case.start]), player.salt(case.ids[case.start :])
        if case.answer_len and len(tail) == case.answer_len:
            await player.gate(len(prefix) + case.answer_len)
            tail = await passes.generate("continuation", prefix, case.answer_len, 1.0, passes.fresh())
        return np.concatenate([prefix, tail])

    async def _noise(self) -> None:
        question, cold = self.question, self.cold
        if question is None or cold is None:
            return
        passes = self._passes()
        await self.player.gate(3 * len(question.ids))
        again = await passes.cold(question)
        self._colds.append(diverge(again, cold))
        if self._case.kind.invariance:
            self._control = await alone(passes, self.player)
            return  # of the other pairs the cold passes say how noisy it is
        kind, victim = self._written_as(question)
        if not kind.controllable:
            self._notes.append(f"a resume of kind {kind.value} cannot be brought about at will: no control")
            return
        rest = question.ids[question.start :]
        if kind is ResumeKind.DECODE:
            rest = question.ids[min(len(victim.ids), len(question.ids)) :]
        made = await make_control(
            passes, kind, victim, rest, question.start, scored_tokens=len(question.ids) - question.start - 1
        )
        self._control = made.divergence
        if made.divergence is None:
            self._notes.append(f"no control: {made.note}")

    async def _second_warm(self) -> None:
        if self.question is None or self.cold is None:
            return
        passes = self._passes()
        if self._case.kind.invariance:
            made = await ask_pair(passes, self.player, len(self._pairs))
        else:
            await self.player.gate(2 * len(self.question.ids))
            warm = await self._score_warm(passes, self.question)
            made = Pair(self.question, warm, await passes.cold(self.question))
        if np.array_equal(made.question.ids, self.question.ids):  # else a batch has said something else
            self._colds.append(diverge(made.cold, self.cold))
        if self._pairs and made.divergence.score > self._pairs[0].score:
            self.question, self.warm, self.cold = made.question, made.warm, made.cold
        self._pairs.append(made.divergence)

    def _written_as(self, question: Question) -> tuple[ResumeKind, Victim]:
        """The kind of this replay's resume, and how its prefix was written, for the control."""
        case, place = self._case, self._case.victim
        ids, prompt_len, temperature = question.ids[: question.start], question.start, 0.0
        if place is not None:
            written, sent = self.player.written(place), self.player.ids[place]
            if written is not None and sent is not None:
                ids, prompt_len = written, len(sent)
            temperature = self.player.trace.sent[place].temperature_milli / 1000
        kind = case.kind
        if kind is ResumeKind.DECODE and question.start <= prompt_len:
            kind = ResumeKind.PREFILL
        if kind is ResumeKind.PREFILL:
            ids = question.ids[: question.start]
        victim = Victim(
            ids=ids,
            prompt_len=prompt_len,
            shape=case.shape,
            written_by=WrittenBy.DECODE if kind is ResumeKind.DECODE else WrittenBy.PREFILL,
            index=-1,
            step=0,
            part=0,
            written_s=0.0,
            temperature=temperature,
        )
        return kind, victim

    def measured(self) -> Measured:
        """What came of it, with any hard alarm that load met."""
        hard, note = self._hard, "; ".join(dict.fromkeys(self._notes))
        if hard is None:
            hard, spoiled = _spoiled_load(self.player.answers)
            note = spoiled or note
        return Measured(
            boundary=self.question.start if self.question is not None else 0,
            warm=tuple(self._pairs),
            cold=tuple(self._colds),
            control=self._control,
            hard=hard,
            note=note,
        )


def _spoiled_load(answers: list[Answer | None]) -> tuple[ProbeOutcome | None, str]:
    """The first null, broken length or foreign id among the answers to load."""
    for answer in answers:
        if answer is not None and (answer.outcome is Outcome.INVALID_LOGPROBS or answer.breaks_invariant):
            null = "null" in answer.detail
            return ProbeOutcome.NON_FINITE if null else ProbeOutcome.BROKEN_INVARIANT, answer.detail
    return None, ""
