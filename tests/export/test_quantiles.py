from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.export.quantiles import LARGEST, LogSketch, nats_sketch, ratio_sketch, seconds_sketch

SECONDS = st.floats(min_value=1e-6, max_value=1e5)
SIGNED = st.floats(min_value=-1e3, max_value=1e3)


def exact(values: list[float], q: float) -> float:
    return sorted(values)[max(1, math.ceil(q * len(values))) - 1]


@given(st.lists(SECONDS, min_size=1, max_size=200), st.floats(min_value=0.0, max_value=1.0))
def test_quantiles_are_within_the_stated_relative_error(values: list[float], q: float) -> None:
    sketch = seconds_sketch()
    for value in values:
        sketch.add(value)
    assert sketch.quantile(q) == pytest.approx(exact(values, q), rel=sketch.relative_error * (1 + 1e-9))


@given(st.lists(SIGNED, min_size=1, max_size=200), st.floats(min_value=0.0, max_value=1.0))
def test_signed_quantiles_are_within_relative_error_or_lowest(values: list[float], q: float) -> None:
    sketch = ratio_sketch()
    for value in values:
        sketch.add(value)
    error = max(abs(exact(values, q)) * sketch.relative_error * (1 + 1e-9), sketch.lowest)
    assert abs(sketch.quantile(q) - exact(values, q)) <= error


@given(st.lists(SIGNED, max_size=60), st.lists(SIGNED, max_size=60))
def test_merging_is_the_same_as_having_seen_both(first: list[float], second: list[float]) -> None:
    left, right, both = ratio_sketch(), ratio_sketch(), ratio_sketch()
    left.add_many(np.array(first))
    right.add_many(np.array(second))
    both.add_many(np.array(first + second))
    left.merge(right)
    assert left.as_dict()["buckets"] == both.as_dict()["buckets"]
    assert (left.count, left.least, left.greatest) == (both.count, both.least, both.greatest)
    assert left.total == pytest.approx(both.total, abs=1e-6)


@given(st.lists(SIGNED, max_size=60))
def test_one_by_one_and_all_at_once_fill_the_same_buckets(values: list[float]) -> None:
    single, many, listed = ratio_sketch(), ratio_sketch(), ratio_sketch()
    for value in values:
        single.add(value)
    many.add_many(np.array(values))
    listed.add_many(values)
    assert single.as_dict()["buckets"] == many.as_dict()["buckets"] == listed.as_dict()["buckets"]


@given(st.lists(SIGNED, max_size=60))
def test_json_and_back(values: list[float]) -> None:
    sketch = ratio_sketch()
    sketch.add_many(np.array(values))
    again = LogSketch.from_dict(json.loads(json.dumps(sketch.as_dict())))
    assert again.as_dict() == sketch.as_dict()
    assert again.figures() == sketch.figures()


def test_memory_does_not_grow_with_what_was_seen() -> None:
    sketch = seconds_sketch()
    before = sketch._counts.nbytes
    sketch.add_many(np.geomspace(1e-9, 1e9, 100_000))
    assert sketch._counts.nbytes == before < 32_768
    assert sketch.count == 100_000


def test_zero_and_tiny_values_share_the_lowest_place() -> None:
    sketch = nats_sketch()
    for value in (0.0, 0.0, 1e-30, 1e-3):
        sketch.add(value)
    assert sketch.quantile(0.5) == 0.0
    assert sketch.quantile(1.0) == 1e-3


def test_values_past_the_highest_keep_an_exact_maximum() -> None:
    sketch = seconds_sketch()
    for value in (1.0, 2e5, 7e7, math.inf):
        sketch.add(value)
    assert sketch.quantile(1.0) == LARGEST
    assert sketch.quantile(0.25) == pytest.approx(1.0, rel=0.01)


def test_an_empty_sketch_has_no_figures() -> None:
    assert math.isnan(seconds_sketch().quantile(0.5))
    assert seconds_sketch().figures() == {
        "count": 0, "mean": None, "p50": None, "p90": None, "p99": None, "max": None,
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, -1.0])
def test_what_has_no_place_is_refused_and_leaves_no_trace(value: float) -> None:
    sketch = seconds_sketch()
    with pytest.raises(ValueError):
        sketch.add(value)
    with pytest.raises(ValueError):
        sketch.add_many(np.array([1.0, value]))
    with pytest.raises(ValueError):
        sketch.add_many([1.0, value])
    assert sketch.count == 0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError):
        LogSketch(1.0, 0.5)
    with pytest.raises(ValueError):
        seconds_sketch().quantile(1.1)
    with pytest.raises(ValueError, match="different layouts"):
        seconds_sketch().merge(nats_sketch())
    bad = seconds_sketch().as_dict() | {"buckets": [[10**6, 1]]}
    with pytest.raises(ValueError, match="does not fit"):
        LogSketch.from_dict(bad)
