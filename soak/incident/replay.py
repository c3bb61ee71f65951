"""A trace sent again, and the question of its case asked again. It judges nothing and prints nothing.

Every repeat has a salt of its own, so that none meets what the one before left in the server's cache while
the shared namespace stays shared; with exact ids it has a namespace of its own instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from soak.incident.judge import Measured
from soak.incident.player import Gate, Manner, Player
from soak.incident.question import Asking
from soak.incident.salt import Salt
from soak.incident.trace import Case, Trace, words_of
from soak.sglang.exchange import Outcome
from soak.sglang.session import Session


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How like the recorded answers the new ones were. Counts of prompts.

    as_recorded: with the same outcome; same_hit: with as many tokens from the cache; lost_parents: follow-ups
    whose parent came to nothing this time, sent as they were recorded. done: pauses and other actions of the
    trace that were done again, by name; refused: those that the server did not take, in words.
    """

    prompts: int
    as_recorded: int
    same_hit: int
    lost_parents: int
    done: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """One replay. salt: the number its ids were made with, 0 for the recorded ones; seconds: on the server.

    played: the trace as it went this time, with the case as it was asked; None without an answer.
    """

    salt: int
    measured: Measured
    fidelity: Fidelity
    seconds: float
    played: Trace | None


async def replay_once(
    session: Session, trace: Trace, salted: Salt, manner: Manner, gate: Gate, *, noise: bool = True
) -> Repeat:
    """Send a trace and ask its question. noise: with repeated cold passes and a control, for its floor."""
    started = time.monotonic()
    player = Player(session, trace, salted, manner, gate)
    asking = Asking(player, manner.timeout_s, noise)
    await asking.plant()
    await player.play(asking.beside)
    await asking.quiet()
    return Repeat(
        salt=salted.number,
        measured=asking.measured(),
        fidelity=_fidelity(player),
        seconds=time.monotonic() - started,
        played=_played(player, asking),
    )


def _fidelity(player: Player) -> Fidelity:
    pairs = [(a, s) for a, s in zip(player.answers, player.trace.seen, strict=True) if a is not None]
    # a run calls its own aborts taken back; here they are seen from the server's side
    aborted = {Outcome.ABORTED.value, Outcome.TAKEN_BACK.value}
    return Fidelity(
        prompts=len(pairs),
        as_recorded=sum(
            a.outcome.value == s.outcome or {a.outcome.value, s.outcome} <= aborted for a, s in pairs
        ),
        same_hit=sum(answer.cached_tokens == seen.cached_tokens for answer, seen in pairs),
        lost_parents=player.lost_parents,
        done=tuple(words_of(acted) for acted in player.done),
        refused=tuple(player.refused),
    )


def _played(player: Player, asking: Asking) -> Trace | None:
    sent, seen, now = player.as_played()
    was = player.trace.case
    question, warm, cold = asking.question, asking.warm, asking.cold
    victim = None if was.victim is None else now[was.victim]
    if question is None or warm is None or cold is None:
        if not was.outcome.hard_alarm:
            return None
        return Trace(sent, seen, replace(was, ids=player.salt(was.ids), victim=victim), player.as_acted())
    case = Case(
        number=was.number,
        kind=was.kind,
        shape=was.shape,
        stream=was.stream,
        ids=question.ids,
        start=question.start,
        warm=warm,
        cold=cold,
        control=asking.control,
        namespace=was.namespace,
        adapter=was.adapter,
        steps=was.steps,
        beside=was.beside,
        victim=victim,
        answer_len=min(was.answer_len, len(question.ids) - question.start - 1),
        at_us=asking.asked_at_us,
        outcome=was.outcome,
        detail=was.detail,
    )
    return Trace(sent, seen, case, player.as_acted())
