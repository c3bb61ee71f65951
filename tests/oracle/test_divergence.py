import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from soak.oracle.divergence import Divergence, discrepancy_score, diverge, diverge_many, k3_per_token

nats = st.floats(-40, 0, allow_nan=False)
passes = st.integers(1, 60).flatmap(
    lambda n: st.tuples(arrays(np.float64, n, elements=nats), arrays(np.float64, n, elements=nats))
)


@given(passes)
def test_figures_agree_with_their_definitions(pair: tuple[np.ndarray, np.ndarray]) -> None:
    warm, cold = pair
    seen = diverge(warm, cold)
    d = [w - c for w, c in zip(warm.tolist(), cold.tolist(), strict=True)]
    assert seen.tokens == len(d)
    assert seen.k1 == pytest.approx(-math.fsum(d) / len(d), abs=1e-9)
    assert seen.k2 == pytest.approx(math.fsum(x * x / 2 for x in d) / len(d), rel=1e-9)
    assert seen.max_abs == max(abs(x) for x in d)
    assert seen.zero == all(x == 0 for x in d)
    assert seen.k3 >= 0
    assert 0 <= seen.score <= 0.5
    assert (seen.onset == 0) == all(abs(x) <= 1e-5 for x in d)
    if seen.onset:
        assert abs(d[seen.onset - 1]) > 1e-5
        assert all(abs(x) <= 1e-5 for x in d[: seen.onset - 1])
    assert math.isnan(seen.first16_median_abs) == (len(d) < 16)


def one_by_one(warm: np.ndarray, cold: np.ndarray) -> Divergence:
    """The figures by NumPy's own means and medians of one row, which every run before has used."""
    d = warm - cold
    size = np.abs(d)
    over = np.flatnonzero(size > 1e-5)
    return Divergence(
        tokens=d.size,
        k1=float(-np.mean(d)),
        k2=float(np.mean(0.5 * d * d)),
        k3=float(np.mean(k3_per_token(d))),
        max_abs=float(size.max()),
        median_abs=float(np.median(size)),
        first16_median_abs=float(np.median(size[:16])) if d.size >= 16 else float("nan"),
        tail_share=float(np.mean(size > 0.05)),
        onset=int(over[0]) + 1 if over.size else 0,
        score=discrepancy_score(d),
    )


@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 1000), st.sampled_from([0.0, 1e-3, 1.0, 500.0]))
def test_many_at_once_are_to_the_last_bit_what_each_is_alone(n: int, t: int, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    cold = -rng.exponential(2.0, (n, t))
    warm = cold + rng.normal(0.0, size, (n, t))
    for one, w, c in zip(diverge_many(warm, cold), warm, cold, strict=True):
        for seen in (one, diverge(w, c)):
            np.testing.assert_equal(dataclasses.asdict(seen), dataclasses.asdict(one_by_one(w, c)))


def test_many_are_refused_as_one_is() -> None:
    for warm in (np.zeros((2, 0)), np.zeros(3), np.zeros((3, 2)), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match=r"cannot be compared|not finite"):
            diverge_many(warm, np.zeros((2, 2)) if warm.shape != (2, 0) else warm)
    assert diverge_many(np.zeros((0, 4)), np.zeros((0, 4))) == []


@given(st.floats(-1e-4, 1e-4))
def test_k3_keeps_its_digits_for_small_differences(d: float) -> None:
    assert k3_per_token(np.array([d]))[0] == pytest.approx(d * d / 2, rel=1e-3, abs=1e-24)


def test_k3_is_an_unbiased_estimate_of_kl_over_tokens_of_the_cold_pass() -> None:
    rng = np.random.default_rng(5)
    cold, warm = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    kl = float(np.sum(cold * np.log(cold / warm)))
    assert float(np.sum(cold * k3_per_token(np.log(warm / cold)))) == pytest.approx(kl, rel=1e-9)


def test_one_loud_token_is_diluted_by_means_and_not_by_the_maximum() -> None:
    warm = np.zeros(1024)
    warm[500] = -3.0
    seen = diverge(warm, np.zeros(1024))
    assert seen.k3 == pytest.approx((math.exp(-3) - 1 + 3) / 1024)
    assert seen.max_abs == 3.0
    assert seen.onset == 501
    assert discrepancy_score(warm) == pytest.approx(0.5 / 1024)


@pytest.mark.parametrize(
    ("warm", "cold"),
    [
        (np.zeros(3), np.zeros(4)),
        (np.zeros(0), np.zeros(0)),
        (np.zeros((2, 2)), np.zeros((2, 2))),
        (np.array([np.nan]), np.zeros(1)),
        (np.array([-np.inf]), np.zeros(1)),
    ],
)
def test_what_cannot_be_compared_is_refused(warm: np.ndarray, cold: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"cannot be compared|not finite"):
        diverge(warm, cold)
