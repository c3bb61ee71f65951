from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.binomial import clopper_pearson_upper
from soak.detect.calibration import (
    SCORE_FLOOR,
    SCORE_MAX,
    Calibration,
    controls_needed,
    magnitude,
    plan_look,
)
from soak.detect.settings import (
    ABSOLUTE_ERROR,
    CONFIDENCE_ERROR,
    KINDS,
    MAGNITUDE_ERROR,
    PAIRED_ERROR,
    DetectSettings,
)


def feed(calibration: Calibration, scores: list[float]) -> int:
    """Number of the control at which the bounds held; 0 if they do not."""
    for i, score in enumerate(scores, start=1):
        if calibration.add(score):
            return i
    return 0


def test_errors_of_all_strata_and_channels_sum_to_one_percent() -> None:
    assert pytest.approx(CONFIDENCE_ERROR) == (ABSOLUTE_ERROR + MAGNITUDE_ERROR + PAIRED_ERROR) * KINDS


@pytest.mark.parametrize("p0_max", [0.01, 0.05, 0.2])
def test_looks_share_the_error_and_each_can_hold(p0_max: float) -> None:
    looks = [plan_look(i, p0_max, ABSOLUTE_ERROR) for i in range(9)]
    assert sum(look.error for look in looks) <= ABSOLUTE_ERROR
    for look, following in itertools.pairwise(looks):
        assert look.comparisons < following.comparisons
    for look in looks:
        assert p0_max >= clopper_pearson_upper(look.allowed, look.comparisons, look.error)
        assert look.rank <= look.comparisons


@pytest.mark.parametrize(
    ("number", "allowed", "rank", "factor"),
    [(0, 0, 1, 1.0), (1, 0, 1, 2.0), (2, 0, 1, 4.0), (3, 4, 2, 1.0), (4, 8, 3, 1.0), (5, 16, 5, 1.0)],
)
def test_first_looks_widen_the_bound_and_later_ones_allow_exceedances(
    number: int, allowed: int, rank: int, factor: float
) -> None:
    look = plan_look(number, 0.2, ABSOLUTE_ERROR)
    assert (look.allowed, look.rank, look.factor) == (allowed, rank, factor)


def test_controls_needed_without_an_exceedance() -> None:
    assert controls_needed(0.2) == 60
    assert controls_needed(0.01) == 1332
    assert (
        controls_needed(0.2, error=0.016) == 42
    )  # 21 comparisons, were the whole 1% one kind's (5/8 of it now)


@pytest.mark.parametrize(("p0_max", "needed"), [(0.2, 60), (0.01, 1332)])
def test_holds_at_the_first_look_when_none_exceeds(p0_max: float, needed: int) -> None:
    calibration = Calibration(p0_max)
    assert calibration.controls_missing == needed
    assert feed(calibration, [1e-4] * (2 * needed)) == needed
    assert calibration.bounds is not None
    assert calibration.bounds.tau == 1e-4
    assert calibration.bounds.p0 <= p0_max
    assert calibration.controls_missing == 0
    assert calibration.controls_needed == needed


def test_halves_are_taken_by_order_and_tau_comes_of_the_first_only() -> None:
    first, second = [2e-4] * 30, [1e-4] * 30
    calibration = Calibration(0.2)
    assert feed(calibration, [score for pair in zip(first, second, strict=True) for score in pair]) == 60
    assert calibration.bounds is not None
    assert calibration.bounds.tau == 2e-4


def test_an_exceedance_raises_tau_by_the_first_half_alone() -> None:
    """The second half's largest is 3e-4: tau may not become that, but twice the first half's largest."""
    scores = [1e-4, 1e-4] * 60
    scores[11] = 1.9e-4
    calibration = Calibration(0.2)
    held = feed(calibration, scores)
    assert held == 2 * plan_look(1, 0.2, ABSOLUTE_ERROR).comparisons
    assert calibration.bounds is not None
    assert calibration.bounds.tau == 2e-4
    assert calibration.note == ""


def test_a_failed_look_says_so() -> None:
    scores = [1e-4] * 60
    scores[11] = 0.1
    calibration = Calibration(0.2)
    assert feed(calibration, scores) == 0
    assert "1 of 30 in the second half exceeded" in calibration.note
    assert calibration.controls_missing == 12


def test_rare_outliers_end_in_a_quantile_not_in_blindness() -> None:
    """One control in 40 is 3,000 times as far off; more controls, and tau is of the body again."""
    rng = np.random.default_rng(3)
    scores = np.where(rng.random(4000) < 0.025, 0.3, rng.lognormal(-9.0, 0.4, 4000))
    calibration = Calibration(0.1)
    assert feed(calibration, scores.tolist()) > 0
    assert calibration.bounds is not None
    assert calibration.bounds.tau <= 0.5 * (0.3 + SCORE_MAX)


def test_bounds_stay_once_they_hold() -> None:
    calibration = Calibration(0.2)
    feed(calibration, [1e-4] * 60)
    before = calibration.bounds
    for _ in range(500):
        assert not calibration.add(0.4)
    assert calibration.bounds == before
    assert calibration.controls == 560


def test_zero_controls_give_the_floor() -> None:
    calibration = Calibration(0.2)
    feed(calibration, [0.0] * 60)
    assert calibration.bounds is not None
    assert calibration.bounds.tau == SCORE_FLOOR


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1))
def test_magnitude_is_a_share(score: float) -> None:
    assert 0.0 <= magnitude(score) <= 1.0
    assert magnitude(SCORE_MAX) == 1.0


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_confidence_holds_and_half_of_all_first_looks_do(sigma: float) -> None:
    """150 servers: the true exceedance of the tau found is over p0 for far fewer than a per cent of them."""
    rng = np.random.default_rng(11)
    broken = first_look = 0
    for _ in range(150):
        calibration = Calibration(0.2)
        scores = np.minimum(rng.lognormal(-9.0, sigma, 600), SCORE_MAX)
        held = feed(calibration, scores.tolist())
        assert held
        assert calibration.bounds is not None
        first_look += held == 60
        fresh = np.minimum(rng.lognormal(-9.0, sigma, 4000), SCORE_MAX)
        broken += float(np.mean(fresh > calibration.bounds.tau)) > calibration.bounds.p0
        assert float(np.mean(fresh) / SCORE_MAX) <= calibration.bounds.m0
    assert broken <= 1
    assert 50 <= first_look <= 100


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 0.5), max_size=150), st.lists(st.floats(0, 0.5), max_size=150))
def test_state_round_trip_goes_on_as_if_nothing_happened(before: list[float], after: list[float]) -> None:
    calibration = Calibration(0.2)
    feed(calibration, before)
    again = Calibration.restored(json.loads(json.dumps(calibration.state(), allow_nan=False)), 0.2)
    assert again.state() == calibration.state()
    for score in after:
        assert again.add(score) == calibration.add(score)
    assert again.state() == calibration.state()


def test_a_smaller_p0_max_starts_anew_and_a_larger_one_does_not() -> None:
    calibration = Calibration(0.2)
    feed(calibration, [1e-4] * 60)
    state = calibration.state()
    assert Calibration.restored(state, 0.3).bounds == calibration.bounds
    stricter = Calibration.restored(state, 0.01)
    assert stricter.bounds is None
    assert stricter.controls == 0
    assert "calibrating anew" in stricter.note


@pytest.mark.parametrize(
    "wrong", [{"p0_max": 0.0}, {"p0_max": 1.0}, {"run_length": 1.0}, {"max_abs_d": 0.0}, {"exact_tokens": 0}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"detect.{next(iter(wrong))}"):
        DetectSettings(**wrong)  # type: ignore[arg-type]
