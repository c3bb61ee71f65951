from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.binomial import clopper_pearson_upper
from soak.detect.mean_bound import upper_mean_bound


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=60), st.floats(1e-4, 0.3))
def test_bound_is_over_the_sample_mean(values: list[float], error: float) -> None:
    bound = upper_mean_bound(np.array(values), error)
    assert 0.0 < bound <= 1.0
    assert bound >= (np.mean(values) if values else 0.0)


def test_nothing_seen_bounds_nothing() -> None:
    assert upper_mean_bound(np.empty(0), 0.01) == 1.0


def test_zeros_cost_little_more_than_an_exact_count() -> None:
    for n in (30, 300, 3000):
        exact = clopper_pearson_upper(0, n, 2.5e-4)
        assert exact <= upper_mean_bound(np.zeros(n), 2.5e-4) <= 1.35 * exact


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["rare ones", "uniform", "log-normal"]))
def test_bound_holds(seed: int, law: str) -> None:
    """At an error of 1e-6 no drawn seed may break it; the true means are exact, or over-estimates."""
    rng = np.random.default_rng(seed)
    values, mean = {
        "rare ones": ((rng.random(200) < 0.02).astype(float), 0.02),
        "uniform": (rng.random(200), 0.5),
        "log-normal": (np.minimum(rng.lognormal(-7.0, 2.0, 200), 1.0), float(np.exp(-7.0 + 2.0))),
    }[law]
    assert upper_mean_bound(values, 1e-6) > mean * (1.0 if law != "log-normal" else 0.5)


def test_error_is_kept_in_the_long_run() -> None:
    rng = np.random.default_rng(5)
    broken = sum(upper_mean_bound((rng.random(40) < 0.1).astype(float), 0.1) < 0.1 for _ in range(300))
    assert broken <= 45  # 10% of 300 is 30; the bound keeps well under


@pytest.mark.parametrize("values", [[-0.1], [1.1], [float("nan")]])
def test_values_outside_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        upper_mean_bound(np.array(values), 0.01)
