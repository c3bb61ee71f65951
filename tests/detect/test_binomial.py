from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from soak.detect.binomial import clopper_pearson_upper, log_binomial_cdf, trials_needed


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.data(), st.floats(1e-6, 0.5))
def test_upper_bound_is_the_beta_quantile(trials: int, data: st.DataObject, error: float) -> None:
    successes = data.draw(st.integers(0, trials - 1))
    wanted = stats.beta.ppf(1.0 - error, successes + 1, trials - successes)
    assert clopper_pearson_upper(successes, trials, error) == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.data(), st.floats(1e-4, 0.9999))
def test_cdf_agrees_with_scipy(trials: int, data: st.DataObject, share: float) -> None:
    successes = data.draw(st.integers(0, trials))
    wanted = stats.binom.logcdf(successes, trials, share)
    assume(wanted > -700.0)  # beyond that SciPy gives up; see the test below
    assert log_binomial_cdf(successes, trials, share) == pytest.approx(wanted, rel=1e-7, abs=1e-9)


def test_cdf_far_under_the_smallest_float() -> None:
    assert log_binomial_cdf(0, 100_000, 0.5) == pytest.approx(100_000 * math.log(0.5))
    assert log_binomial_cdf(-1, 10, 0.5) == -math.inf
    assert log_binomial_cdf(3, 10, 1.0) == -math.inf
    assert log_binomial_cdf(3, 10, 0.0) == 0.0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_no_more_than_all_is_certain(share: float) -> None:
    assert log_binomial_cdf(10, 10, share) == 0.0
    assert log_binomial_cdf(11, 10, share) == 0.0


def test_nothing_seen_and_everything_seen_bound_nothing() -> None:
    assert clopper_pearson_upper(0, 0, 0.01) == 1.0
    assert clopper_pearson_upper(7, 7, 0.01) == 1.0


@pytest.mark.parametrize(("share", "trials"), [(0.01, 459), (0.2, 21), (0.001, 4603)])
def test_trials_needed_at_one_percent(share: float, trials: int) -> None:
    assert trials_needed(share, 0.01) == trials
    assert clopper_pearson_upper(0, trials, 0.01) <= share < clopper_pearson_upper(0, trials - 1, 0.01)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.002, 0.5), st.floats(1e-5, 0.2), st.integers(0, 20))
def test_trials_needed_is_the_least(share: float, error: float, successes: int) -> None:
    trials = trials_needed(share, error, successes)
    assert clopper_pearson_upper(successes, trials, error) <= share * (1 + 1e-9)
    if trials - 1 > successes:
        assert clopper_pearson_upper(successes, trials - 1, error) > share * (1 - 1e-9)


@pytest.mark.parametrize(
    ("successes", "trials", "error"), [(-1, 5, 0.1), (6, 5, 0.1), (1, 5, 0.0), (1, 5, 1.0)]
)
def test_impossible_counts_are_refused(successes: int, trials: int, error: float) -> None:
    with pytest.raises(ValueError, match="no bound"):
        clopper_pearson_upper(successes, trials, error)


@pytest.mark.parametrize(
    ("share", "error", "successes"),
    [(0.0, 0.01, 0), (1.0, 0.01, 0), (0.1, 0.0, 0), (0.1, 1.0, 0), (0.1, 0.01, -1)],
)
def test_impossible_plans_are_refused(share: float, error: float, successes: int) -> None:
    with pytest.raises(ValueError, match="no number of trials"):
        trials_needed(share, error, successes)
