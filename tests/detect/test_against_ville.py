"""The same bets by another hand: ``ville`` (Bhaduri), after Waudby-Smith and Ramdas, where the two overlap.

Its bets are min(plug-in, c / m): at an error so small that the plug-in is never the less, a constant one, as
ours are. It knows neither Shiryaev-Roberts nor strata; what its e-process comes to is put together here from
the definition, start by start.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import ville
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from soak.detect.calibration import Bounds, magnitude
from soak.detect.edetector import SHARES, EDetector, advance, log_bet, log_total
from soak.detect.evidence import ABSOLUTE_WEIGHT, MAGNITUDE_WEIGHT, Evidence, Sighting
from soak.detect.mean_bound import _STAKES, upper_mean_bound

Array = npt.NDArray[np.float64]

NEVER = 1e-300  # an error at which the plug-in bet is over every c / m tried here
STEPS = 40

streams = st.lists(st.floats(0, 1), min_size=1, max_size=STEPS)
coins = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=STEPS)
means = st.floats(0.15, 0.9)


def log_wealth(values: list[float], mean: float, stake: float, side: str) -> Array:
    """ville's ln e-process after each value, for a constant stake."""
    test = ville.BettingTest(mean, alternative=side, alpha=NEVER, c=stake).fit(np.array(values))
    return np.asarray(test.log_e_values_, dtype=np.float64)


def log_sum_over_starts(log_e: Array) -> float:
    """ln of the sum over k of E_n / E_(k - 1): Shiryaev and Roberts, by definition."""
    return float(log_e[-1] + logsumexp(-np.concatenate([[0.0], log_e[:-1]])))


@settings(max_examples=80, deadline=None)
@given(streams, means, st.sampled_from(SHARES))
def test_one_bet_after_the_other_is_its_betting_test(values: list[float], mean: float, share: float) -> None:
    ours = np.cumsum([log_bet(x, mean, (share,))[0] for x in values])
    assert ours == pytest.approx(log_wealth(values, mean, share, "greater"), abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(streams, means)
def test_the_detector_is_its_e_process_summed_over_starts(values: list[float], mean: float) -> None:
    detector = EDetector([1 / len(SHARES)] * len(SHARES))
    for x in values:
        detector.update("a", log_bet(x, mean))
    parts = [log_sum_over_starts(log_wealth(values, mean, share, "greater")) for share in SHARES]
    assert detector.log_sum() == pytest.approx(logsumexp(parts) - math.log(len(SHARES)), abs=1e-8)


@settings(max_examples=60, deadline=None)
@given(coins, streams, means, means)
def test_both_channels_of_a_stream_together(
    exceeds: list[float], sizes: list[float], p0: float, m0: float
) -> None:
    """Weights and all, through the class that the detectors use."""
    bounds = Bounds(tau=0.1, p0=p0, m0=m0, controls=0)
    scores = [0.3 * x + 0.05 * size for x, size in zip(exceeds, sizes, strict=False)]
    evidence = Evidence(1e300)
    for number, score in enumerate(scores):
        evidence.take(Sighting(number, "a", score), bounds)
    over = [float(score > bounds.tau) for score in scores]
    wanted = []
    for values, mean, weight in (
        (over, p0, ABSOLUTE_WEIGHT),
        ([magnitude(score) for score in scores], m0, MAGNITUDE_WEIGHT),
    ):
        for share in SHARES:
            log_m = log_sum_over_starts(log_wealth(values, mean, share, "greater"))
            wanted.append(log_m + math.log(weight / len(SHARES)))
    assert evidence.main.log_sum() == pytest.approx(logsumexp(wanted), abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 0.4), min_size=20, max_size=STEPS), st.floats(1e-3, 0.2))
def test_the_upper_bound_of_a_mean_is_where_its_bettor_has_enough(values: list[float], error: float) -> None:
    """The bettor on a smaller mean, over the stakes: at the bound he holds 1 / error, under it less."""
    bound = upper_mean_bound(np.array(values), error)
    assume(bound < 0.84)  # nearer to 1 the plug-in is the smaller bet

    def held(mean: float) -> float:
        logs = [log_wealth(values, mean, stake, "less")[-1] for stake in _STAKES]
        return float(logsumexp(logs) - math.log(len(_STAKES)))

    assert held(bound) == pytest.approx(-math.log(error), abs=1e-6)
    assert held(0.98 * bound) < -math.log(error)


def test_its_own_guarantee_and_ours_meet_on_a_corrupt_stream() -> None:
    """Sequential test and detector by one e-process: the sum over starts is never behind the one from 0."""
    rng = np.random.default_rng(7)
    values = (rng.random(STEPS) < 0.6).astype(float).tolist()
    log_e = log_wealth(values, 0.15, 0.3, "greater")
    log_m = -math.inf
    for step, x in enumerate(values):
        log_m = advance(log_m, log_bet(x, 0.15, (0.3,))[0])
        assert log_m >= log_e[step] - 1e-9
    assert log_m == pytest.approx(log_sum_over_starts(log_e))
    assert log_total([log_m]) == log_m
