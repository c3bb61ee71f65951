"""Asks an invariance pair of a trace once more: the same ids by two ways. No prompt of load has a part in it.

Of a request with others the trace holds how long those were, not which: any others of these lengths will do,
as nobody's answer but the one in question is looked at. What was evicted when is not in a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.drive.doing import drawn_ids
from soak.incident.player import Player
from soak.oracle.divergence import Divergence, diverge
from soak.oracle.invariance import in_steps
from soak.oracle.passes import Array, Passes, PassFailedError, Question
from soak.oracle.probe import PAIR_WORDS, ProbeOutcome, ResumeKind
from soak.sglang.exchange import TokenIds

_MOST_BESIDE = 64  # prompts of one request, from which numbers of drawn ones are made


@dataclass(frozen=True, slots=True)
class Pair:
    """What was scored, by the other way (warm) and cold in one request: logprobs, one a token."""

    question: Question
    warm: Array
    cold: Array

    @property
    def divergence(self) -> Divergence:
        """The other way against cold."""
        return diverge(self.warm, self.cold)


async def ask_pair(passes: Passes, player: Player, number: int) -> Pair:
    """Pair ``number`` of this replay. Raises PassFailedError, also for what the trace cannot say."""
    case = player.trace.case
    await player.gate(2 * len(case.ids) + sum(case.beside))
    if case.kind is ResumeKind.DECODE_BATCH and case.beside:
        others, place = _others(player, number)
        prompt = player.salt(case.ids[: case.start + 1])
        answer = await passes.continue_beside(
            "warm", prompt, _generated(player), passes.fresh(), others=others, place=place
        )
        question = Question(np.concatenate([prompt, answer.output_ids]), case.start)
        return Pair(question, answer.output_logprobs, await passes.cold(question))
    question = Question(player.salt(case.ids), case.start)
    if case.kind is ResumeKind.IN_A_BATCH and case.beside:
        others, place = _others(player, number)
        cold = await passes.cold(question)
        scored = await passes.score_beside(
            "warm", question.ids, question.start, passes.fresh(), others=others, place=place
        )
        return Pair(question, question.comparable("warm", scored), cold)
    steps = [end for end in case.steps if end <= case.start]
    if not steps:
        raise PassFailedError(
            ProbeOutcome.REQUEST_FAILED,
            f"{PAIR_WORDS[case.kind]}: how that was asked, or what was evicted when, is not in the trace, so "
            "this pair cannot be asked again; the run's seed plays it (`soak replay --seed`)",
        )
    cold = await passes.cold(question)
    return Pair(question, await in_steps("warm", passes, question, steps), cold)


async def alone(passes: Passes, player: Player) -> Divergence | None:
    """The control of what is generated in a batch: nobody beside it, and against a cold pass as well."""
    case = player.trace.case
    if case.kind is not ResumeKind.DECODE_BATCH:
        return None
    prompt = player.salt(case.ids[: case.start + 1])
    answer = await passes.continue_beside("control", prompt, _generated(player), passes.fresh())
    question = Question(np.concatenate([prompt, answer.output_ids]), case.start)
    return diverge(answer.output_logprobs, await passes.cold(question))


def _generated(player: Player) -> int:
    return len(player.trace.case.ids) - player.trace.case.start - 1


def _others(player: Player, number: int) -> tuple[tuple[TokenIds, ...], int]:
    """Prompts of the recorded lengths, and the place of the one in question among them."""
    beside, salt = player.trace.case.beside, player.salt
    ordinary = (salt.low, salt.low + len(salt.table))
    place = beside.index(0) if 0 in beside else 0
    return tuple(
        drawn_ids(salt.number, number * _MOST_BESIDE + at, length, ordinary)
        for at, length in enumerate(beside)
        if length
    ), place
