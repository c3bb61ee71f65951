"""When a replay counts as the same wrong answer: clear of the noise measured beside it, and not tiny."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.incident.judge import Measured, Original, Reading, floor_of, judge, original_of
from soak.oracle.divergence import Divergence, diverge
from soak.oracle.probe import ProbeOutcome
from tests.incident.traces import Script, random_ids


def off(nats: float) -> Divergence:
    """Every token so many nats off: a score of nats^2 / 2."""
    cold = np.full(16, -5.0)
    return diverge(cold + nats, cold)


THEN = Original(score=0.5 * 0.3**2, max_abs=0.3)


def reading(*measured: Measured, original: Original = THEN) -> list[Reading]:
    return [one.reading for one in judge(original, measured)]


def seen(warm: float, cold: float = 0.0, control: float | None = None) -> Measured:
    return Measured(128, (off(warm),), (off(cold),), None if control is None else off(control))


def test_on_an_exact_server_any_difference_near_the_original_counts() -> None:
    assert reading(seen(0.3, control=0.0)) == [Reading.REPRODUCED]
    assert reading(seen(0.0, control=0.0)) == [Reading.NOT_REPRODUCED]
    assert reading(seen(0.031)) == [Reading.REPRODUCED]
    assert reading(seen(0.029)) == [Reading.NOT_REPRODUCED]  # less than a tenth of it, in nats


def test_it_must_stand_clear_of_cold_passes_and_of_controls() -> None:
    assert reading(seen(0.3, cold=0.09)) == [Reading.REPRODUCED]
    assert reading(seen(0.3, cold=0.1)) == [Reading.NOT_REPRODUCED]
    assert reading(seen(0.1, cold=0.001)) == [Reading.REPRODUCED]
    assert reading(seen(0.09, cold=0.001)) == [Reading.NOT_REPRODUCED]  # under a tenth of the score
    assert reading(seen(0.3, cold=0.02, control=0.1)) == [Reading.NOT_REPRODUCED]


def test_the_noise_of_one_repeat_holds_for_all() -> None:
    assert reading(seen(0.3), seen(0.3, cold=0.1)) == [Reading.NOT_REPRODUCED] * 2


def test_a_control_that_is_itself_wrong_is_no_noise() -> None:
    judged = judge(THEN, [seen(0.3, cold=0.001, control=0.3)])[0]
    assert judged.reading is Reading.REPRODUCED
    assert "every resume of this kind" in judged.words
    # beside cold passes as noisy as that it is just noise
    assert reading(seen(0.3, cold=0.08, control=0.3)) == [Reading.NOT_REPRODUCED]


def test_the_larger_of_two_pairs_counts() -> None:
    two = replace(seen(0.0), warm=(off(0.0), off(0.3)))
    assert reading(two) == [Reading.REPRODUCED]


def test_without_an_answer_it_counts_neither_way() -> None:
    judged = judge(THEN, [Measured(note="nothing of the prefix is cached"), seen(0.3)])
    assert [one.reading for one in judged] == [Reading.NO_ANSWER, Reading.REPRODUCED]
    assert "nothing of the prefix" in judged[0].words


def test_a_hard_alarm_is_the_same_alarm_again() -> None:
    null = Original(0.0, 0.0, hard=ProbeOutcome.NON_FINITE)
    again = replace(seen(0.0), hard=ProbeOutcome.NON_FINITE, note="position 5 is null")
    other = replace(again, hard=ProbeOutcome.BROKEN_INVARIANT)
    assert reading(again, other, seen(0.3), original=null) == [
        Reading.REPRODUCED, Reading.NOT_REPRODUCED, Reading.NOT_REPRODUCED,
    ]  # fmt: skip


def test_cold_passes_that_disagree_are_a_complaint_of_their_own() -> None:
    unsteady = Original(score=0.045, max_abs=0.3, cold=0.04)
    assert unsteady.unsteady
    assert reading(seen(0.0, cold=0.3), original=unsteady) == [Reading.REPRODUCED]
    assert reading(seen(0.3, cold=0.04), original=unsteady) == [Reading.NOT_REPRODUCED]
    assert not Original(score=0.045, max_abs=0.3, cold=0.002).unsteady


def test_the_original_speaks_through_its_own_passes() -> None:
    script = Script()
    script.send(random_ids(64, 1))
    trace = script.ask(0, size=0.2)
    original = original_of(trace.case)
    assert original.score == pytest.approx(0.02)
    assert original.cold is None
    case = replace(trace.case, cold_again=trace.case.cold + 0.1)
    assert original_of(case).cold == pytest.approx(0.005)
    hard = replace(trace.case, outcome=ProbeOutcome.NON_FINITE, warm=np.empty(0), cold=np.empty(0))
    assert original_of(hard).hard is ProbeOutcome.NON_FINITE


NATS = st.floats(0, 2)


@given(st.lists(st.tuples(NATS, NATS, st.none() | NATS), min_size=1, max_size=4))
def test_more_noise_never_makes_it_reproduced(figures: list[tuple[float, float, float | None]]) -> None:
    measured = [seen(*one) for one in figures]
    noisier = [replace(one, cold=(*one.cold, off(2.0))) for one in measured]
    assert all(r is not Reading.REPRODUCED for r in reading(*noisier))
    floor, _ = floor_of(measured)
    assert floor >= max(d.score for one in measured for d in one.cold)
