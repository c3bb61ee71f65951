"""A trace sent again to a healthy simulator: same order, same neighbours, other ids; and its question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from soak.incident.judge import Reading, judge, original_of
from soak.incident.order import Speed, order_of
from soak.incident.player import Manner, Player
from soak.incident.replay import Repeat, replay_once
from soak.incident.salt import salt
from soak.incident.trace import Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.incident.traces import Script, random_ids
from tests.run.test_soaking import nothing_left, until

ORDINARY = (10, 1000)
MAX = Manner(Speed.MAX)


async def free(_: int) -> None:
    """No budget."""


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with running(SimConfig(numerics="exact")) as url, SGLangClient(url) as client:
        yield Session(client, "test")


async def again(session: Session, trace: Trace, number: int = 1, manner: Manner = MAX) -> Repeat:
    return await replay_once(session, trace, salt(number, ORDINARY), manner, free)


def reading(trace: Trace, repeat: Repeat) -> Reading:
    return judge(original_of(trace.case), [repeat.measured])[0].reading


async def test_order_neighbours_and_requests_are_as_they_were(session: Session) -> None:
    script = Script(lasts_us=30_000)
    script.send(random_ids(40, 1), random_ids(50, 2))
    script.send(random_ids(30, 3), new=6)
    script.rest()
    (parent,) = script.send(random_ids(60, 4), new=3)
    script.send(random_ids(30, 5))
    script.rest()
    script.follow(parent, random_ids(10, 6))
    trace = script.ask(0)
    repeat = await again(session, trace)
    assert repeat.played is not None
    assert [s.request for s in repeat.played.sent] == [s.request for s in trace.sent]
    then, now = order_of(trace), order_of(repeat.played)
    assert [r.places for r in now.requests] == [r.places for r in then.requests]
    for was, request in zip(then.requests, now.requests, strict=True):
        assert request.finished_before >= was.finished_before
    assert repeat.fidelity.as_recorded == repeat.fidelity.prompts == 6
    child, came = repeat.played.sent[-1], repeat.played.seen[3]
    assert np.array_equal(child.ids[: child.inherits][-3:], came.output_ids)
    assert child.inherits == 63
    assert reading(trace, repeat) is Reading.NOT_REPRODUCED
    assert repeat.measured.control is not None
    assert repeat.measured.control.zero


async def test_every_repeat_meets_a_cold_cache_and_the_shared_namespace() -> None:
    async with running(SimConfig(numerics="exact", model="attention")) as url, SGLangClient(url) as client:
        await salts_keep_repeats_apart(Session(client, "test"))


async def salts_keep_repeats_apart(session: Session) -> None:
    script = Script()
    (victim,) = script.send(random_ids(200, 1))
    script.rest()
    script.send(np.concatenate([script.sent[victim].ids[:150], random_ids(20, 2)]))
    trace = script.ask(victim)
    for number in (5, 6):
        repeat = await again(session, trace, number)
        assert repeat.played is not None
        assert repeat.played.seen[0].cached_tokens == 0
        assert repeat.measured.boundary == 200
    same = await again(session, trace, 6)  # the same ids again: even the question is cached now
    assert same.fidelity.same_hit == 0
    assert "at what the question left" in same.measured.note
    apart = await again(session, trace, 6, replace(MAX, apart=True))
    assert apart.played is not None
    assert apart.played.seen[0].cached_tokens == 0


async def test_the_recorded_speed_keeps_pauses(session: Session) -> None:
    script = Script()
    script.send(random_ids(64, 1))
    script.rest()
    script.now_us += 400_000
    script.send(random_ids(30, 2))
    trace = script.ask(0)
    slow = await again(session, trace, manner=Manner(Speed.RECORDED))
    assert slow.played is not None
    assert slow.played.sent[1].sent_us >= 400_000
    fast = await again(session, trace)
    assert fast.played is not None
    assert fast.played.sent[1].sent_us < slow.played.sent[1].sent_us


async def test_aborts_happen_again(session: Session) -> None:
    script = Script(lasts_us=200_000)
    script.send(random_ids(64, 1))
    script.rest()
    script.send(random_ids(64, 2), new=2000, abort_us=50_000)
    trace = script.ask(0)
    repeat = await again(session, trace)
    assert repeat.played is not None
    assert repeat.played.seen[1].outcome == "aborted"


async def test_forced_follow_ups_go_on_from_what_was_recorded(session: Session) -> None:
    script = Script()
    (parent,) = script.send(random_ids(64, 1), new=5)
    script.rest()
    script.follow(parent, random_ids(10, 2))
    trace = script.ask(parent)
    repeat = await again(session, trace, 0, replace(MAX, forced=True))
    assert repeat.played is not None
    assert np.array_equal(repeat.played.sent[1].ids, trace.sent[1].ids)
    repeat = await again(session, trace, 0)
    assert repeat.played is not None
    assert not np.array_equal(repeat.played.sent[1].ids, trace.sent[1].ids)


async def test_a_prefix_from_outside_the_window_is_written_first(session: Session) -> None:
    script = Script()
    script.send(random_ids(40, 1))
    trace = script.ask(None, ids=random_ids(90, 2))
    repeat = await again(session, trace)
    assert repeat.measured.boundary == 90
    assert reading(trace, repeat) is Reading.NOT_REPRODUCED


async def test_a_decode_written_prefix_is_asked_as_it_was_written_this_time(session: Session) -> None:
    script = Script()
    (victim,) = script.send(random_ids(80, 1), new=40)
    script.rest()
    trace = script.ask(victim, decoded=True)
    repeat = await again(session, trace)
    assert repeat.played is not None
    case, sent, seen = repeat.played.case, repeat.played.sent[0], repeat.played.seen[0]
    assert np.array_equal(case.ids[:120], np.concatenate([sent.ids, seen.output_ids]))
    assert case.kind is ResumeKind.DECODE
    assert repeat.measured.boundary > 80
    assert repeat.measured.control is not None


async def test_a_request_that_fails_now_is_no_answer(session: Session) -> None:
    script = Script()
    script.send(random_ids(5000, 1))  # longer than the server takes
    trace = script.ask(0, prefix=100)
    repeat = await again(session, trace)
    assert repeat.played is None
    assert reading(trace, repeat) is Reading.NO_ANSWER
    assert "rejected" in repeat.measured.note


async def test_what_the_question_itself_wrote_is_no_answer() -> None:
    script = Script()
    script.send(random_ids(40, 1))
    trace = script.ask(0, tail=60)
    async with running(SimConfig(numerics="exact", radix_strategy="extra_buffer")) as url:
        async with SGLangClient(url) as client:
            repeat = await again(Session(client, "test"), trace)  # states lie on a grid of 64
    assert reading(trace, repeat) is Reading.NO_ANSWER
    assert "resumed at 64, past the 40 tokens that the trace wrote" in repeat.measured.note


async def test_a_continuation_is_made_anew(session: Session) -> None:
    script = Script()
    script.send(random_ids(100, 1))
    trace = script.ask(0, tail=20, answer_len=20)
    repeat = await again(session, trace)
    assert repeat.played is not None
    assert repeat.played.case.answer_len == 19
    assert not np.array_equal(repeat.played.case.ids[100:], salt(1, ORDINARY)(trace.case.ids[100:]))


async def test_a_null_is_a_hard_alarm_again() -> None:
    script = Script()
    for number in range(8):
        script.send(random_ids(150, number), return_logprob=True, new=40)
        script.rest()
    trace = script.ask(0, outcome=ProbeOutcome.NON_FINITE)
    async with running(SimConfig(numerics="production", faults=("nan-logprob",))) as url:
        async with SGLangClient(url) as client:
            repeat = await again(Session(client, "test"), trace)
    assert repeat.measured.hard is ProbeOutcome.NON_FINITE
    assert reading(trace, repeat) is Reading.REPRODUCED


async def test_cancelled_it_leaves_nothing_on_the_server() -> None:
    script = Script(lasts_us=5_000_000)
    for number in range(3):
        script.send(random_ids(50, number), new=3000)
    trace = script.ask(0)
    async with running(SimConfig(numerics="exact")) as url, SGLangClient(url) as client:
        session = Session(client, "test")
        player = Player(session, trace, salt(1, ORDINARY), MAX, free)
        task = asyncio.create_task(player.play(free_question))
        await until(url, lambda n: n >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await session.abort_outstanding() == 0
        await nothing_left(url)


async def free_question() -> None:
    """Asks nothing."""
