"""Cut traces stay traces: what is inherited and what is asked follow from what is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.incident import cuts
from soak.incident.order import order_of
from soak.incident.shrink import shrink, size
from soak.incident.trace import Trace
from tests.incident.traces import Script, random_ids


def family() -> Trace:
    """0 and 1 travel together; 2 goes on from 0, 3 from 2; 4 is apart and aborted. The case is about 3."""
    script = Script(lasts_us=50_000)
    a, _ = script.send(random_ids(40, 1), random_ids(30, 2), new=8)
    script.rest()
    (b,) = script.follow(a, random_ids(10, 3), new=4)
    script.rest()
    (c,) = script.follow(b, random_ids(6, 4), new=20)
    script.send(random_ids(25, 5), abort_us=500, new=3, return_logprob=True, logprob_start_len=20)
    return script.ask(c, decoded=True)


def holds_together(trace: Trace) -> None:
    """What a trace must be: children begin with their parents, the case with its victim."""
    for sent in trace.sent:
        if sent.parent is not None:
            parent, came = trace.sent[sent.parent], trace.seen[sent.parent]
            whole = np.concatenate([parent.ids, came.output_ids])
            assert np.array_equal(sent.ids[: sent.inherits], whole[: sent.inherits])
        assert len(sent.ids)
        assert sent.logprob_start_len is None or sent.logprob_start_len < len(sent.ids)
    for sent, seen in zip(trace.sent, trace.seen, strict=True):
        assert len(seen.output_ids) <= sent.max_new_tokens
    assert len(trace.case.ids) - trace.case.start - 1 == len(trace.case.warm) >= 1
    if trace.case.victim is not None:
        assert cuts.case_share(trace) >= trace.case.start
    order_of(trace)


def test_a_case_knows_how_much_of_it_its_victim_wrote() -> None:
    trace = family()
    assert cuts.case_share(trace) == trace.case.start == 40 + 8 + 10 + 4 + 6 + 20


def test_a_shorter_output_moves_all_that_goes_on_from_it() -> None:
    trace = cuts.with_output(family(), 0, 3)
    holds_together(trace)
    assert [s.max_new_tokens for s in trace.sent[:2]] == [3, 3]  # they travel together
    assert trace.sent[2].inherits == 43
    assert trace.case.start == family().case.start - 5


def test_a_shorter_prompt_moves_all_that_goes_on_from_it() -> None:
    trace = cuts.with_own(family(), 2, 2)
    holds_together(trace)
    assert len(trace.sent[2].ids) == 50
    assert trace.case.start == family().case.start - 8
    trace = cuts.with_own(family(), 4, 5)
    assert trace.sent[4].logprob_start_len == 4


def test_without_its_parent_a_follow_up_is_sent_as_it_was() -> None:
    was = family()
    trace = cuts.keep(was, {2, 3})
    holds_together(trace)
    assert np.array_equal(trace.sent[0].ids, was.sent[2].ids)
    assert (trace.sent[0].parent, trace.sent[1].parent, trace.case.victim) == (None, 0, 1)


def test_the_tail_and_the_boundary() -> None:
    trace = cuts.with_tail(family(), 8)
    holds_together(trace)
    assert len(trace.case.warm) == 7
    earlier = cuts.with_boundary(family(), 64)
    holds_together(earlier)
    assert earlier.case.start == 64
    assert np.array_equal(earlier.case.ids[64:], family().case.ids[family().case.start :])


def test_apart_nothing_runs_beside() -> None:
    script = Script(lasts_us=10_000)
    for number in range(4):
        script.send(random_ids(20, number))
    trace = script.ask(1, at_us=5_000)
    assert cuts.most_at_once(trace) == 4
    alone = cuts.apart(trace, range(4))
    assert [r.finished_before for r in order_of(alone).requests] == [0, 1, 2, 3]
    one = cuts.apart(trace, [2])
    assert [r.finished_before for r in order_of(one).requests] == [0, 0, 2, 3]
    assert cuts.most_at_once(cuts.apart(trace, range(4))) == 1


def test_two_requests_become_one() -> None:
    script = Script(lasts_us=10_000)
    script.send(random_ids(20, 1), new=5)
    (victim,) = script.send(random_ids(30, 2), new=2)
    script.rest()
    (late,) = script.send(random_ids(10, 3))
    trace = script.ask(victim)
    merged = cuts.together(trace, 0, 1)
    assert merged is None  # the first one's recorded output is longer than the victim's may be
    trace = cuts.with_output(trace, 0, 2)
    merged = cuts.together(trace, 0, 1)
    assert merged is not None
    holds_together(merged)
    assert [r.places for r in order_of(merged).requests] == [(0, 1), (late,)]
    assert merged.case.victim == victim
    assert cuts.together(family(), 0, 1) is None  # a follow-up cannot travel with its parent


def test_windows_keep_the_history_of_the_case_and_what_was_around_it() -> None:
    script = Script()
    (old,) = script.send(random_ids(40, 1), new=2)
    for number in range(10):
        script.rest()
        script.send(random_ids(20, 10 + number))
    (victim,) = script.follow(old, random_ids(5, 2))
    for number in range(10):
        script.rest()
        script.send(random_ids(20, 30 + number))
    script.rest()
    at = script.now_us
    (late,) = script.send(random_ids(20, 99))
    trace = script.ask(victim, at_us=at)
    two = cuts.latest(trace, 2)
    assert [len(s.ids) for s in two.sent] == [40, 20, 47, 20, 20]  # old, beside, victim, the last two
    assert two.case.victim == 2
    assert len(cuts.latest(trace, 0).sent) == 2
    near = cuts.since(trace, 1_500)
    # the old one, that beside the victim and those next to it, the last before the question, the one after it
    assert {0, victim, victim - 1, late} <= {p for p, s in enumerate(trace.sent) if s in near.sent}
    assert len(near.sent) < len(trace.sent) / 2
    assert len(cuts.since(trace, 10**9).sent) == len(trace.sent)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_holds_together(data: st.DataObject) -> None:
    trace = family()
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(trace.sent) - 1))
        match data.draw(st.sampled_from(["output", "own", "keep", "tail", "boundary", "apart", "abort"])):
            case "output":
                trace = cuts.with_output(trace, place, data.draw(st.integers(1, 25)))
            case "own":
                trace = cuts.with_own(trace, place, data.draw(st.integers(1, 45)))
            case "keep":
                kept = data.draw(st.sets(st.integers(0, len(trace.sent) - 1)))
                trace = cuts.keep(trace, kept | {trace.case.victim or 0})
            case "tail":
                trace = cuts.with_tail(trace, data.draw(st.integers(2, 30)))
            case "boundary":
                trace = cuts.with_boundary(trace, data.draw(st.integers(1, trace.case.start)))
            case "apart":
                numbers = range(len(order_of(trace).requests))
                trace = cuts.apart(trace, data.draw(st.sets(st.sampled_from(numbers))))
            case "abort":
                trace = cuts.without_abort(trace, place)
        holds_together(trace)


def test_a_search_goes_down_only_and_keeps_what_matters() -> None:
    """An oracle that wants the victim, prompt 4 and its abort, ten tokens of output, and no less."""
    trace = family()
    kept = trace.sent[4].ids[:9]

    def does(one: Trace) -> bool:
        other = [s for s in one.sent if len(s.ids) >= 9 and np.array_equal(s.ids[:9], kept)]
        victim = one.case.victim
        assert victim is not None
        return bool(other) and other[0].abort_us is not None and one.sent[victim].max_new_tokens >= 10

    search = shrink(replace(trace, case=replace(trace.case, at_us=trace.sent[4].sent_us + 9)))
    best = trace
    try:
        candidate = next(search)
        while True:
            holds_together(candidate)
            held = does(candidate)
            if held:
                best = candidate
            candidate = search.send(held)
    except StopIteration as done:
        found: Trace = done.value
    assert size(found) <= size(best)
    assert len(found.sent) == 2
    assert sorted(len(s.ids) - s.inherits for s in found.sent)[0] == 1
    assert len(next(s for s in found.sent if s.abort_us is not None).ids) == 9
    assert next(s for s in found.sent if s.abort_us is None).max_new_tokens == 10
