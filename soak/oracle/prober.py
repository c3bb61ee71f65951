"""One probe from victim to result: locate, then warm, cold and control passes in a drawn order.

The prober decides nothing: detectors say when a control or a repeat is wanted, the verdict is made elsewhere.
It never flushes the cache, which would destroy what is under test.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from soak.oracle.amnesia import amnesia
from soak.oracle.coarsened import Listed, coarsened_kl
from soak.oracle.controls import Control, make_control, standalone_control
from soak.oracle.divergence import diverge
from soak.oracle.passes import Pass, Passes, PassFailedError, Question, Scored
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.recall import Recall, recalled
from soak.oracle.victims import Asked, Victim, Victims
from soak.plan.geometry import Geometry
from soak.plan.item import Segment, WrittenBy
from soak.plan.words import Draw
from soak.sglang.exchange import TokenIds
from soak.sglang.session import Session

Array = npt.NDArray[np.float64]


class Detecting(Protocol):
    """What the prober asks of the detectors while a probe is under way."""

    def wants_cold_repeat(self) -> bool:
        """Whether repeated cold passes are still missing."""
        ...

    def wants_repeat(self, result: ProbeResult) -> str | None:
        """Why a second warm + cold pair should be run before the result is judged, or None."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Lengths in tokens; shares in thousandths of probes; top_k: candidates listed at each token."""

    tail: int = 64
    max_scored: int = 256
    continuation: int = 24
    kept_context: int = 64
    amnesia_per_mille: int = 250
    control_per_mille: int = 250
    repeat_per_mille: int = 250
    top_k: int = 0
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Standalone:
    """A control made for calibration alone, and what it cost in tokens."""

    kind: ResumeKind
    shape: str
    control: Control
    under_load: bool
    tokens_spent: int


@dataclass(frozen=True, slots=True)
class PassSeen:
    """One pass of probe ``number``, or of the control that took that number, about that victim.

    tail: the planned tokens that may follow the victim's in what was sent.
    """

    number: int
    control: bool
    sent: Pass
    victim: Victim
    tail: Segment


def begun(number: int, victim: Victim, shape: str, kind: ResumeKind, session: Session) -> ProbeResult:
    """The result of a probe of that victim that begins now, before anything is asked."""
    started = time.monotonic()
    return ProbeResult(
        number=number,
        shape=shape,
        kind=kind,
        outcome=ProbeOutcome.VALID,
        victim_index=victim.index,
        victim_step=victim.step,
        victim_part=victim.part,
        victim_age_s=started - victim.written_s,
        victim_tokens=len(victim.ids),
        started_s=started,
        under_load=session.prompts_in_flight > 0,
    )


def ended(result: ProbeResult, passes: Passes) -> ProbeResult:
    """The same with what it took."""
    result.seconds = time.monotonic() - result.started_s
    result.tokens_spent = passes.tokens_prefilled + passes.tokens_decoded
    return result


class Prober:
    """Runs numbered probes; everything drawn depends on (seed, nonce, number) alone."""

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
        on_pass: Callable[[PassSeen], None] = lambda _: None,
    ) -> None:
        self._on_pass = on_pass
        self._session = session
        self._victims = victims
        self._detecting = detecting
        self._geometry = geometry
        self._settings = settings
        self._seed, self._nonce = seed, nonce

    async def probe(self, number: int) -> ProbeResult | None:
        """Probe ``number``, or None when there is no victim to ask about."""
        victim = self._victims.choose(number)
        if victim is None:
            return None
        passes = self._passes(number, victim, "probe-tail")
        result = begun(number, victim, victim.shape, _kind(victim, len(victim.ids), 0), self._session)
        result.worker = victim.worker
        try:
            await self._ask(result, victim, passes)
        except PassFailedError as failed:
            result.outcome, result.detail = failed.outcome, failed.detail
            if failed.outcome is ProbeOutcome.EVICTED:
                self._victims.forget(victim)
        return ended(result, passes)

    async def control(self, number: int, kind: ResumeKind) -> Standalone | ProbeResult | None:
        """A control without a probe, made from a victim's recipe; None when no victim was written so.

        A hard alarm met on the way comes back as the result of a probe.
        """
        wanted = WrittenBy.DECODE if kind is ResumeKind.DECODE else WrittenBy.PREFILL
        victim = self._victims.recipe(number, wanted)
        if victim is None:
            return None
        passes = self._passes(number, victim, "control-tail")
        under_load = self._session.prompts_in_flight > 0
        rest = self._tail(number, "control-tail")
        started = time.monotonic()
        try:
            control = await standalone_control(
                passes,
                kind,
                victim,
                rest,
                room=self._geometry.context_len - 1,
                scored_tokens=self._settings.max_scored,
            )
        except PassFailedError as failed:
            return ProbeResult(
                number=number,
                shape=victim.shape,
                kind=kind,
                outcome=failed.outcome,
                detail=failed.detail,
                victim_index=victim.index,
                victim_step=victim.step,
                victim_part=victim.part,
                victim_tokens=len(victim.ids),
                started_s=started,
                seconds=time.monotonic() - started,
                under_load=under_load,
                tokens_spent=passes.tokens_prefilled + passes.tokens_decoded,
            )
        return Standalone(
            kind, victim.shape, control, under_load, passes.tokens_prefilled + passes.tokens_decoded
        )

    def _passes(self, number: int, victim: Victim, tail: str) -> Passes:
        """The passes of one number, each told of."""
        segment = Segment(tail, number, 0, self._settings.tail)
        control = tail == "control-tail"
        return Passes(
            self._session,
            self._settings.timeout_s,
            lambda sent: self._on_pass(PassSeen(number, control, sent, victim, segment)),
            worker="" if control else victim.worker,  # a control by itself is anybody's, and of one
            rank=self._session.rank_of(victim.index),
            adapter=victim.adapter,
        )

    def _tail(self, number: int, purpose: str) -> TokenIds:
        """Random tokens to score after a victim, of this number alone."""
        return Segment(purpose, number, 0, self._settings.tail).ids(self._seed, self._nonce, self._geometry)

    async def _ask(self, result: ProbeResult, victim: Victim, passes: Passes) -> None:
        draw = Draw(self._seed, "probe", result.number)
        question = await self._locate(result, victim, passes, draw)
        wants_control = draw.chance(self._settings.control_per_mille) and result.kind.controllable
        if not result.kind.controllable:
            result.control_note = f"a resume of kind {result.kind.value} cannot be brought about at will"
        wants_repeat = draw.chance(self._settings.repeat_per_mille)
        steps = ["warm", "cold", "control"] if wants_control else ["warm", "cold"]
        top_k = self._settings.top_k if victim.needle is None else max(1, self._settings.top_k)
        listed: dict[str, Listed] = {}
        while steps:
            step = steps.pop(draw.below(len(steps)))
            if step == "warm":
                warm = await self._warm(passes, question, victim.namespace, top_k=top_k)
                result.warm, listed[step] = warm.logprobs, question.listed(warm)
            elif step == "cold":
                cold = await passes.cold_scored(question, top_k=top_k)
                result.cold, listed[step] = cold.logprobs, question.listed(cold)
            else:
                rest = question.ids[min(len(victim.ids), len(question.ids)) :]
                if result.kind is ResumeKind.PREFILL:
                    rest = question.ids[question.start :]
                asked = len(question.ids) - question.start - 1
                control = await make_control(
                    passes, result.kind, victim, rest, question.start, scored_tokens=asked
                )
                result.control, result.control_note = control.divergence, control.note
                result.control_off = control.off
        result.divergence = diverge(result.warm, result.cold)
        if self._settings.top_k:
            result.coarsened = coarsened_kl(listed["cold"], listed["warm"])
        if victim.needle is not None and question.answer_len:
            result.needle = _recall(victim, victim.needle, listed["warm"], listed["cold"])
        if question.answer_len:
            await _beside(result, self._amnesia(result, passes, question))
        await _beside(result, self._served(result, victim, passes))
        reason = self._detecting.wants_repeat(result)
        if reason is not None:
            await self._confirm(result, victim, passes, question)
        elif wants_repeat or self._detecting.wants_cold_repeat():
            await _beside(result, self._repeat(result, passes, question))

    async def _repeat(self, result: ProbeResult, passes: Passes, question: Question) -> None:
        result.cold_repeat = diverge(await passes.cold(question, "cold repeat"), result.cold)

    async def _locate(self, result: ProbeResult, victim: Victim, passes: Passes, draw: Draw) -> Question:
        """Build the question and learn the resume boundary K from the server."""
        settings = self._settings
        room = self._geometry.context_len - 1
        with_answer = (
            draw.chance(settings.amnesia_per_mille)
            and len(victim.ids) > 2 * settings.kept_context
            and len(victim.ids) + settings.continuation < room
        )
        needle = victim.needle
        answer_len = settings.continuation
        if needle is not None:
            tail = np.concatenate([needle.question, needle.answer])
            with_answer, answer_len = len(victim.ids) + len(tail) <= room, len(needle.answer)
        elif with_answer:
            # sampled from the cold pass at temperature 1: the one reference under which the amnesia
            # denominator does not vanish, and under which k3 estimates a true KL divergence
            tail = await passes.generate(
                "continuation", victim.ids, settings.continuation, 1.0, passes.fresh()
            )
        else:
            tail = self._tail(result.number, "probe-tail")
        ids = np.concatenate([victim.ids, tail])[:room]
        boundary, host = await passes.locate(ids, victim.namespace)
        result.resume_boundary = boundary
        result.kind = _kind(victim, boundary, host)
        if boundary == 0:
            raise PassFailedError(ProbeOutcome.EVICTED, "the victim is no longer cached")
        if len(ids) - boundary - 1 > settings.max_scored:
            ids, with_answer = ids[: boundary + 1 + settings.max_scored], False
        if len(ids) - boundary < 2:
            raise PassFailedError(
                ProbeOutcome.TOO_SHORT, f"{len(ids)} tokens, resumed at {boundary}: nothing to score"
            )
        return Question(ids, boundary, answer_len if with_answer else 0)

    async def _warm(
        self,
        passes: Passes,
        question: Question,
        namespace: str | None,
        what: str = "warm",
        *,
        top_k: int = 0,
    ) -> Scored:
        scored = await passes.score(what, question.ids, question.start, namespace, top_k=top_k)
        if scored.cached == 0:
            raise PassFailedError(ProbeOutcome.EVICTED, "evicted between the locate and the warm pass")
        if scored.cached != question.start:
            raise PassFailedError(
                ProbeOutcome.BOUNDARY_MOVED,
                f"the {what} pass resumed at {scored.cached}, the locate request at {question.start}",
            )
        question.comparable(what, scored)
        return scored

    async def _served(self, result: ProbeResult, victim: Victim, passes: Passes) -> None:
        """Where the load asked for logprobs: what decode gave, against a cold prefill, once per victim."""
        served, victim.served = victim.served, None
        if served is None or len(served) < 2:
            return
        served = served[: self._settings.max_scored]
        generated = Question(victim.ids[: victim.prompt_len + len(served)], victim.prompt_len - 1)
        result.served = diverge(served, await passes.cold(generated, "served cold"))

    async def _amnesia(self, result: ProbeResult, passes: Passes, question: Question) -> None:
        """Score the continuation once more with the far context cut out."""
        kept, answer = self._settings.kept_context, question.answer_len
        blank = await passes.cold(Question(question.ids[-(kept + answer) :], kept - 1), "blank")
        # resumed at the very end of the victim, the continuation's first token is the one without a logprob
        scored = min(answer, len(result.warm))
        result.amnesia = amnesia(result.warm[-scored:], result.cold[-scored:], blank[-scored:])

    async def _confirm(self, result: ProbeResult, victim: Victim, passes: Passes, question: Question) -> None:
        """A second warm + cold pair; a pass that fails now leaves the first result standing."""
        try:
            cold = await passes.cold(question, "confirming cold")
            result.cold_repeat = diverge(cold, result.cold)
            warm = await self._warm(passes, question, victim.namespace, "confirming warm")
        except PassFailedError as failed:
            if failed.outcome.hard_alarm:
                raise
            result.detail = f"no confirming pair: {failed.detail}"
            return
        result.confirmation = diverge(warm.logprobs, cold)
        result.confirmation_cold = result.cold_repeat


async def _beside(result: ProbeResult, extra: Awaitable[None]) -> None:
    """Passes beside the comparison: one that fails takes nothing from what was compared."""
    try:
        await extra
    except PassFailedError as failed:
        if failed.outcome.hard_alarm:
            raise
        result.detail = failed.detail


def _recall(victim: Victim, asked: Asked, warm: Listed, cold: Listed) -> Recall | None:
    """Both sides of a needle by the answer's own places; None where the answer is not all scored."""
    n = len(asked.answer)
    if len(warm.logprobs) < n:
        return None
    sides = [recalled(side.logprobs[-n:], side.top.ids[-n:, 0], asked.answer) for side in (warm, cold)]
    return Recall(asked.depth, len(victim.ids), sides[0], sides[1])


def _kind(victim: Victim, boundary: int, host: int) -> ResumeKind:
    """What the resume stands on: only a boundary inside the generated part rests on decode's writing."""
    if victim.retractions:
        return ResumeKind.RETRACTED
    if host:
        return ResumeKind.HOST
    if victim.written_by is WrittenBy.DECODE and boundary > victim.prompt_len:
        return ResumeKind.DECODE
    return ResumeKind.PREFILL
