from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact, mannwhitneyu

from soak.report.chance import LEAST, adjusted, rank_test, share_test

VALUES = st.lists(st.integers(0, 12), min_size=LEAST, max_size=60)


@given(VALUES, VALUES)
def test_ranks_as_an_independent_implementation_has_them(a: list[int], b: list[int]) -> None:
    one, other = np.array(a, dtype=float), np.array(b, dtype=float)
    p = rank_test(one, other)
    assert p is not None
    if len({*a, *b}) == 1:
        assert p == 1.0
        return
    wanted = mannwhitneyu(one, other, method="asymptotic", use_continuity=True).pvalue
    assert p == pytest.approx(min(1.0, wanted), rel=1e-9, abs=1e-12)
    assert rank_test(other, one) == pytest.approx(p)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_shares_as_an_independent_implementation_has_them(a: int, b: int, c: int, d: int) -> None:
    p = share_test(a, a + b, c, c + d)
    if not a + b or not c + d:
        assert p is None
        return
    assert p == pytest.approx(fisher_exact([[a, b], [c, d]]).pvalue, rel=1e-6)


def test_large_counts_are_no_trouble() -> None:
    p = share_test(500_000, 1_000_000, 500_500, 1_000_000)
    assert p is not None
    assert 0.4 < p < 0.6
    assert share_test(0, 1_000_000, 0, 1_000_000) == pytest.approx(1.0)
    off = share_test(10, 1_000_000, 400, 1_000_000)
    assert off is not None
    assert off < 1e-60


def test_too_few_values_are_not_tested() -> None:
    assert rank_test(np.arange(LEAST - 1.0), np.arange(99.0)) is None


def test_many_tests_cost_something() -> None:
    assert adjusted([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert adjusted([None]) == [None]
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]


def test_equal_runs_rarely_differ() -> None:
    """Of 2,000 pairs of equal runs about one in a hundred is under 0.01."""
    rng = np.random.default_rng(1)
    ps = [rank_test(rng.normal(size=40), rng.normal(size=60)) for _ in range(2000)]
    false = sum(p is not None and p < 0.01 for p in ps)
    assert false <= 20 + 4 * math.sqrt(20)
