"""What waits for what: at full speed only idle time goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from soak.incident.order import KEPT_GAP_US, order_of
from soak.incident.trace import Origin, Trace
from tests.incident.traces import Script, random_ids


def test_one_after_the_other_stays_so_and_the_pause_goes() -> None:
    script = Script()
    for _ in range(3):
        script.send(random_ids(20, 1))
        script.rest()
        script.now_us += 5_000_000
    requests = order_of(script.ask(0)).requests
    assert [r.finished_before for r in requests] == [0, 1, 2]
    assert [r.gap_us for r in requests] == [0, 0, 0]


def test_what_ran_side_by_side_still_does_at_a_short_distance() -> None:
    script = Script(lasts_us=2_000_000)
    script.send(random_ids(20, 1))
    script.now_us += 1_000_000
    script.send(random_ids(20, 2))
    script.now_us += 300
    script.send(random_ids(20, 3))
    requests = order_of(script.ask(0)).requests
    assert [r.finished_before for r in requests] == [0, 0, 0]
    assert [r.gap_us for r in requests] == [0, KEPT_GAP_US, 301]


def test_prompts_of_one_request_travel_together() -> None:
    script = Script()
    script.send(random_ids(20, 1), random_ids(30, 2))
    script.send(random_ids(20, 3))
    requests = order_of(script.ask(0)).requests
    assert [r.places for r in requests] == [(0, 1), (2,)]


def test_a_follow_up_keeps_its_distance_to_the_end_of_its_parent() -> None:
    script = Script()
    (parent,) = script.send(random_ids(20, 1))
    script.rest()
    script.now_us += 70_000
    script.follow(parent, random_ids(5, 2))
    request = order_of(script.ask(0)).requests[1]
    assert request.parents == (0,)
    assert request.after_parent_us == 71_000


def test_the_question_comes_when_it_came() -> None:
    script = Script(lasts_us=10_000)
    script.send(random_ids(20, 1))
    script.rest()
    script.send(random_ids(20, 2))
    at = script.now_us
    script.now_us += 100
    script.send(random_ids(20, 3))
    order = order_of(script.ask(0, at_us=at))
    assert (order.probe_after, order.probe_ends) == (2, 1)
    order = order_of(script.ask(0))  # not known when: after everything
    assert (order.probe_after, order.probe_ends) == (3, 3)


def test_its_own_passes_are_left_to_the_replay() -> None:
    script = Script()
    script.send(random_ids(20, 1))
    script.send(random_ids(20, 1))
    trace = script.ask(0)
    passes = replace(trace.sent[1], origin=Origin.PROBE, index=trace.case.number)
    order = order_of(replace(trace, sent=(trace.sent[0], passes)))
    assert [r.places for r in order.requests] == [(0,)]


def test_what_never_ended_holds_nobody_up() -> None:
    script = Script()
    script.send(random_ids(20, 1))
    script.now_us = 50
    script.send(random_ids(20, 2))
    trace = script.ask(0)
    lost = replace(trace.seen[0], outcome="timed_out", finished_us=0)
    order = order_of(replace(trace, seen=(lost, trace.seen[1])))
    assert order.requests[1].finished_before == 1
    assert order.ends == (0, 1)


def broken_parent(trace: Trace) -> Trace:
    early = replace(trace.sent[0], parent=1, sent_us=0)
    return replace(trace, sent=(early, replace(trace.sent[1], sent_us=9)))


def broken_request(trace: Trace) -> Trace:
    same = replace(trace.sent[1], request=trace.sent[0].request, max_new_tokens=5)
    return replace(trace, sent=(trace.sent[0], same))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(broken_parent, "before its parent"), (broken_request, "differ in max_new_tokens")],
)
def test_a_trace_that_contradicts_itself_is_refused(spoil: Callable[[Trace], Trace], words: str) -> None:
    script = Script()
    script.send(random_ids(20, 1))
    script.send(random_ids(20, 2))
    with pytest.raises(ValueError, match=words):
        order_of(spoil(script.ask(0)))
