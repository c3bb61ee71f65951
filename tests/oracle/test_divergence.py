import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from soak.oracle.divergence import discrepancy_score, diverge, k3_per_token

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
