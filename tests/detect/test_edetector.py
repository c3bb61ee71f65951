from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.edetector import SHARES, EDetector, advance, advance_all, log_bet, log_total
from tests.detect.many_runs import log_bets

WEIGHTS = [0.2] * 5
shares_of_one = st.floats(1e-3, 0.9)


def test_log_bet_is_the_bernoulli_likelihood_ratio() -> None:
    p0 = 0.013
    for share, hit, miss in zip(SHARES, log_bet(1.0, p0), log_bet(0.0, p0), strict=True):
        p1 = p0 + share * (1 - p0)
        assert hit == pytest.approx(math.log(p1 / p0))
        assert miss == pytest.approx(math.log((1 - p1) / (1 - p0)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1))
def test_expectation_is_at_most_one_under_the_null(values: list[float], slack: float) -> None:
    """For any law on [0, 1]: the empirical law of ``values``, and any bound from its mean upwards."""
    x = np.array(values)
    bound = float(x.mean() + slack * (1 - x.mean()))
    if bound > 1e-9:
        bound = min(1.0, bound)
        assert (np.exp(log_bets(x, bound)).mean(axis=0) <= 1.0 + 1e-9).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), shares_of_one)
def test_scalar_and_array_forms_agree(values: list[float], bound: float) -> None:
    array = log_bets(np.array(values), bound)
    log_m: list[float] = [-math.inf] * len(SHARES)
    log_a = np.full(len(SHARES), -np.inf)
    for value, row in zip(values, array, strict=True):
        assert log_bet(value, bound) == pytest.approx(row.tolist())
        log_m = [advance(m, e) for m, e in zip(log_m, log_bet(value, bound), strict=True)]
        log_a = advance_all(log_a, row)
    assert log_m == pytest.approx(log_a.tolist())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 50.0), min_size=1, max_size=25))
def test_recursion_is_the_sum_over_starts(e_values: list[float]) -> None:
    """Shiryaev and Roberts defined it so: the sum over k of the product of all e-values from k on."""
    log_m = -math.inf
    for value in e_values:
        log_m = advance(log_m, math.log(value))
    direct = sum(math.prod(e_values[start:]) for start in range(len(e_values)))
    assert math.exp(log_m) == pytest.approx(direct, rel=1e-9)


def test_expectation_under_the_null_is_the_number_of_probes() -> None:
    """Exactly, by going through all outcomes of 10 probes over two streams."""
    p0, probes = 0.3, 10
    mean = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=probes):
        detector = EDetector(WEIGHTS)
        chance = 1.0
        for i, x in enumerate(outcome):
            detector.update("ab"[i % 3 == 0], log_bet(x, p0))
            chance *= p0 if x else 1 - p0
        mean += chance * math.exp(detector.log_sum())
    assert mean == pytest.approx(probes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1)), max_size=60), st.randoms())
def test_order_of_streams_does_not_matter(probes: list[tuple[str, float]], random: object) -> None:
    """Interleaving streams differently, each in its own order, comes to the same sum."""
    plain, sorted_by_stream = EDetector(WEIGHTS), EDetector(WEIGHTS)
    for stream, x in probes:
        plain.update(stream, log_bet(x, 0.05))
    for stream, x in sorted(probes, key=lambda probe: probe[0]):
        sorted_by_stream.update(stream, log_bet(x, 0.05))
    assert plain.log_sum() == pytest.approx(sorted_by_stream.log_sum())
    for stream in plain.streams():
        assert plain.log_stream(stream) == pytest.approx(sorted_by_stream.log_stream(stream))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=40))
def test_peek_tells_what_update_does(probes: list[tuple[str, bool]]) -> None:
    detector = EDetector(WEIGHTS)
    for stream, x in probes:
        own, total = detector.peek(stream, log_bet(float(x), 0.1))
        detector.update(stream, log_bet(float(x), 0.1))
        assert detector.log_stream(stream) == pytest.approx(own)
        assert detector.log_sum() == pytest.approx(total)
    assert detector.log_sum() == pytest.approx(log_total(detector.log_stream(s) for s in detector.streams()))
    for stream in detector.streams():
        assert detector.log_stream(stream) == pytest.approx(log_total(detector.log_components(stream)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_state_round_trip(probes: list[tuple[str, bool]]) -> None:
    detector = EDetector(WEIGHTS)
    for stream, x in probes:
        detector.update(stream, log_bet(float(x), 0.1))
    again = EDetector(WEIGHTS)
    again.restore(json.loads(json.dumps(detector.state(), allow_nan=False)))
    assert again.state() == detector.state()
    assert again.log_sum() == detector.log_sum()


def test_forgetting_a_stream_leaves_the_others() -> None:
    detector = EDetector(WEIGHTS)
    for stream in ("a", "b"):
        detector.update(stream, log_bet(1.0, 0.1))
    left = detector.log_stream("b")
    detector.forget("a")
    detector.forget("never seen")
    assert detector.streams() == ("b",)
    assert detector.log_stream("a") == -math.inf
    assert detector.log_sum() == left


@pytest.mark.parametrize("weights", [[], [0.5, 0.4], [1.5, -0.5]])
def test_weights_sum_to_one(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        EDetector(weights)


def test_e_values_that_are_none_are_refused() -> None:
    detector = EDetector(WEIGHTS)
    for wrong in ([0.0] * 4, [0.0, 0.0, 0.0, 0.0, -math.inf], [0.0, 0.0, 0.0, 0.0, math.nan]):
        with pytest.raises(ValueError, match="finite"):
            detector.update("a", wrong)
        with pytest.raises(ValueError, match="does not fit"):
            detector.restore({"a": wrong})
    assert detector.streams() == ()


def test_nothing_seen_is_no_evidence() -> None:
    assert EDetector(WEIGHTS).log_sum() == -math.inf
    assert EDetector(WEIGHTS).log_components("a") == [-math.inf] * 5


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_ten_million_steps_neither_overflow_nor_turn_nan(share: float) -> None:
    """A block of steps is an affine map of M: 10,000 blocks of 1,000 steps, each block applied at once.

    The recursion itself is run for 20 blocks beside it, and goes on from the end.
    """
    rng = np.random.default_rng(1)
    period = (rng.random(1000) < share).astype(float)
    log_m = np.full(len(SHARES), -np.inf)
    # (slope, offset) of the affine map M -> slope M + offset, by one period, both in logs
    log_slope, log_offset = np.zeros(len(SHARES)), np.full(len(SHARES), -np.inf)
    for row in log_bets(period, 0.01):
        log_slope = log_slope + row
        log_offset = advance_all(log_offset, row)
    total_slope, total_offset = np.zeros(len(SHARES)), np.full(len(SHARES), -np.inf)
    for _ in range(10_000):
        total_offset = np.logaddexp(total_offset + log_slope, log_offset)
        total_slope = total_slope + log_slope
    assert np.isfinite(total_offset).all()
    for row in log_bets(np.tile(period, 20), 0.01):
        log_m = advance_all(log_m, row)
    short = np.full(len(SHARES), -np.inf)
    for _ in range(20):
        short = np.logaddexp(short + log_slope, log_offset)
    assert log_m == pytest.approx(short)
    detector = EDetector(WEIGHTS)
    detector.restore({"a": total_offset.tolist()})
    for x in (0.0, 1.0, 0.0):
        detector.update("a", log_bet(x, 0.01))
        assert math.isfinite(detector.log_sum())


@pytest.mark.slow
def test_ten_million_updates_one_by_one() -> None:
    """Quiet, then nothing but exceedances, then quiet again, against the closed form of each stretch."""
    bound, stretches = 0.01, ((0.0, 3_000_000), (1.0, 4_000_000), (0.0, 3_000_000))
    detector = EDetector(WEIGHTS)
    wanted = [-math.inf] * len(SHARES)
    for x, steps in stretches:
        log_e = log_bet(x, bound)
        for _ in range(steps):
            detector.update("a", log_e)
        # M_n = L^n M_0 + L + L^2 + ... + L^n
        series = [
            step + math.log(math.expm1(steps * step) / math.expm1(step))
            if steps * step < 700.0
            else steps * step - math.log(-math.expm1(-step))
            for step in log_e
        ]
        wanted = [log_total([m + steps * e, s]) for m, e, s in zip(wanted, log_e, series, strict=True)]
        held = [c - math.log(w) for c, w in zip(detector.log_components("a"), WEIGHTS, strict=True)]
        assert held == pytest.approx(wanted, rel=1e-7, abs=1e-7)
        assert math.isfinite(detector.log_sum())
