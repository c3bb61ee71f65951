"""One probe from victim to result: locate, then warm, cold and control passes in a drawn order.

The prober decides nothing: detectors say when a control or a repeat is wanted, the verdict is made elsewhere.
It never flushes the cache, which would destroy what is under test.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from soak.oracle.amnesia import amnesia
from soak.oracle.divergence import diverge
from soak.oracle.passes import Passes, PassFailedError, Scored
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.victims import Victim, Victims
from soak.plan.geometry import Geometry
from soak.plan.item import Segment, WrittenBy
from soak.plan.words import Draw
from soak.sglang.exchange import TokenIds
from soak.sglang.session import Session

Array = npt.NDArray[np.float64]


class Detecting(Protocol):
    """What the prober asks of the detectors while a probe is under way."""

    def wants_control(self, kind: ResumeKind) -> bool:
        """Whether this kind still lacks controls."""
        ...

    def wants_repeat(self, result: ProbeResult) -> str | None:
        """Why a second warm + cold pair should be run before the result is judged, or None."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Lengths in tokens; shares in thousandths of probes."""

    tail: int = 64
    max_scored: int = 256
    continuation: int = 24
    kept_context: int = 64
    amnesia_per_mille: int = 250
    control_per_mille: int = 250
    repeat_per_mille: int = 250
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class _Question:
    """ids: all tokens; start: the resume boundary K; answer_len: tokens of a cold continuation at the end."""

    ids: TokenIds
    start: int
    answer_len: int


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
    ) -> None:
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
        started = time.monotonic()
        passes = Passes(self._session, self._settings.timeout_s)
        result = ProbeResult(
            number=number,
            shape=victim.shape,
            kind=_kind(victim, len(victim.ids), 0),
            outcome=ProbeOutcome.VALID,
            victim_index=victim.index,
            victim_age_s=started - victim.written_s,
            victim_tokens=len(victim.ids),
            started_s=started,
            under_load=self._session.prompts_in_flight > 0,
        )
        try:
            await self._ask(result, victim, passes)
        except PassFailedError as failed:
            result.outcome, result.detail = failed.outcome, failed.detail
            if failed.outcome is ProbeOutcome.EVICTED:
                self._victims.forget(victim)
        result.seconds = time.monotonic() - started
        result.tokens_spent = passes.tokens_prefilled + passes.tokens_decoded
        return result

    async def _ask(self, result: ProbeResult, victim: Victim, passes: Passes) -> None:
        draw = Draw(self._seed, "probe", result.number)
        question = await self._locate(result, victim, passes, draw)
        wants_control = self._wants_control(result.kind, draw)
        wants_repeat = draw.chance(self._settings.repeat_per_mille)
        steps = ["warm", "cold", "control"] if wants_control else ["warm", "cold"]
        control: tuple[Array, Array | None] | None = None
        while steps:
            step = steps.pop(draw.below(len(steps)))
            if step == "warm":
                result.warm = await self._warm(passes, question, victim.namespace)
            elif step == "cold":
                result.cold = await self._cold(passes, question)
            else:
                control = await self._control(result, victim, passes, question)
        result.divergence = diverge(result.warm, result.cold)
        if control is not None:
            scored, own_cold = control
            result.control = diverge(scored, result.cold if own_cold is None else own_cold)
        if question.answer_len:
            await self._amnesia(result, passes, question)
        await self._served(result, victim, passes)
        reason = self._detecting.wants_repeat(result)
        if reason is not None:
            await self._confirm(result, victim, passes, question)
        elif wants_repeat:
            result.cold_repeat = diverge(await self._cold(passes, question), result.cold)

    async def _locate(self, result: ProbeResult, victim: Victim, passes: Passes, draw: Draw) -> _Question:
        """Build the question and learn the resume boundary K from the server."""
        settings = self._settings
        room = self._geometry.context_len - 1
        with_answer = (
            draw.chance(settings.amnesia_per_mille)
            and len(victim.ids) > 2 * settings.kept_context
            and len(victim.ids) + settings.continuation < room
        )
        if with_answer:
            # sampled from the cold pass at temperature 1: the one reference under which the amnesia
            # denominator does not vanish, and under which k3 estimates a true KL divergence
            tail = await passes.generate(
                "continuation", victim.ids, settings.continuation, 1.0, passes.fresh()
            )
        else:
            tail = Segment("probe-tail", result.number, 0, settings.tail).ids(
                self._seed, self._nonce, self._geometry
            )
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
        return _Question(ids, boundary, settings.continuation if with_answer else 0)

    async def _warm(self, passes: Passes, question: _Question, namespace: str | None) -> Array:
        scored = await passes.score("warm", question.ids, question.start, namespace)
        if scored.cached == 0:
            raise PassFailedError(ProbeOutcome.EVICTED, "evicted between the locate and the warm pass")
        if scored.cached != question.start:
            raise PassFailedError(
                ProbeOutcome.BOUNDARY_MOVED,
                f"the warm pass resumed at {scored.cached}, the locate request at {question.start}",
            )
        return _comparable("warm", scored, question)

    async def _cold(self, passes: Passes, question: _Question) -> Array:
        scored = await passes.score("cold", question.ids, question.start, passes.fresh())
        if scored.cached:
            raise PassFailedError(
                ProbeOutcome.COLD_HIT, f"the cold pass in a fresh namespace resumed at {scored.cached}"
            )
        return _comparable("cold", scored, question)

    def _wants_control(self, kind: ResumeKind, draw: Draw) -> bool:
        thinned = draw.chance(self._settings.control_per_mille)
        return kind in (ResumeKind.PREFILL, ResumeKind.DECODE) and (
            thinned or self._detecting.wants_control(kind)
        )

    async def _control(
        self, result: ProbeResult, victim: Victim, passes: Passes, question: _Question
    ) -> tuple[Array, Array | None] | None:
        """The probe's path in a private namespace: written in quiet, then hit at the same K.

        Gives the control's logprobs and, where its ids are not the probe's, a cold pass over them. A control
        that cannot be made leaves a note and costs the probe nothing.
        """
        namespace = passes.fresh()
        try:
            if result.kind is ResumeKind.DECODE:
                written = len(victim.ids) - victim.prompt_len
                output = await passes.generate(
                    "control write", victim.ids[: victim.prompt_len], written, victim.temperature, namespace
                )
                rest = question.ids[len(victim.ids) :]
                ids = np.concatenate([victim.ids[: victim.prompt_len], output, rest])
                own = _Question(ids, question.start, 0)
            else:
                own = question
                await passes.generate("control write", question.ids[: question.start], 0, 0.0, namespace)
            scored = await passes.score("control", own.ids, own.start, namespace)
            if scored.cached != own.start:
                result.control_note = f"the control resumed at {scored.cached}, not at {own.start}"
                return None
            control = _comparable("control", scored, own)
            own_cold = await self._cold(passes, own) if own is not question else None
        except PassFailedError as failed:
            if failed.outcome.hard_alarm:
                raise
            result.control_note = failed.detail
            return None
        return control, own_cold

    async def _served(self, result: ProbeResult, victim: Victim, passes: Passes) -> None:
        """Where the load asked for logprobs: what decode gave, against a cold prefill, once per victim."""
        served, victim.served = victim.served, None
        if served is None or not 2 <= len(served) <= self._settings.max_scored:
            return
        generated = _Question(victim.ids, victim.prompt_len - 1, 0)
        result.served = diverge(served, await self._cold(passes, generated))

    async def _amnesia(self, result: ProbeResult, passes: Passes, question: _Question) -> None:
        """Score the continuation once more with the far context cut out."""
        kept, answer = self._settings.kept_context, question.answer_len
        blank = _Question(question.ids[-(kept + answer) :], kept - 1, answer)
        result.amnesia = amnesia(
            result.warm[-answer:], result.cold[-answer:], await self._cold(passes, blank)
        )

    async def _confirm(
        self, result: ProbeResult, victim: Victim, passes: Passes, question: _Question
    ) -> None:
        """A second warm + cold pair; a pass that fails now leaves the first result standing."""
        try:
            cold = await self._cold(passes, question)
            result.cold_repeat = diverge(cold, result.cold)
            warm = await self._warm(passes, question, victim.namespace)
        except PassFailedError as failed:
            if failed.outcome.hard_alarm:
                raise
            result.detail = f"no confirming pair: {failed.detail}"
            return
        result.confirmation = diverge(warm, cold)
        result.confirmation_cold = result.cold_repeat


def _kind(victim: Victim, boundary: int, host: int) -> ResumeKind:
    """What the resume stands on: only a boundary inside the generated part rests on decode's writing."""
    if victim.retractions:
        return ResumeKind.RETRACTED
    if host:
        return ResumeKind.HOST
    if victim.written_by is WrittenBy.DECODE and boundary > victim.prompt_len:
        return ResumeKind.DECODE
    return ResumeKind.PREFILL


def _comparable(what: str, scored: Scored, question: _Question) -> Array:
    wanted = len(question.ids) - question.start - 1
    if scored.logprobs.shape != (wanted,):
        raise PassFailedError(
            ProbeOutcome.BROKEN_INVARIANT,
            f"{what} pass: {scored.logprobs.size} logprobs for {wanted} tokens after {question.start}",
        )
    if not np.isfinite(scored.logprobs).all():
        place = int(np.flatnonzero(~np.isfinite(scored.logprobs))[0]) + question.start + 1
        raise PassFailedError(
            ProbeOutcome.NON_FINITE, f"{what} pass: the logprob at position {place} is null"
        )
    return scored.logprobs
