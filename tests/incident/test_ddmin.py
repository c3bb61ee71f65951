"""The searches, against oracles that are known, steady and flaky."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from soak.incident.ddmin import fewer, growing, least
from soak.incident.sequential import Sequential, rate_of

C = TypeVar("C")
R = TypeVar("R")


def solve(search: Generator[C, bool, R], oracle: Callable[[C], bool]) -> tuple[R, int]:
    """What a search comes to, and how often it asked."""
    asked = 0
    try:
        candidate = next(search)
        while True:
            asked += 1
            candidate = search.send(oracle(candidate))
    except StopIteration as done:
        return done.value, asked


NEEDED = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=6))
)


@given(NEEDED)
def test_exactly_what_is_needed_is_left(case: tuple[int, set[int]]) -> None:
    n, needed = case
    kept, asked = solve(fewer(range(n)), lambda some: needed <= set(some))
    assert set(kept) == needed
    assert asked <= 2 * n + 20 * (1 + len(needed))


@given(st.integers(2, 40), st.data())
def test_of_several_ways_one_minimal_is_left(n: int, data: st.DataObject) -> None:
    ways = data.draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1, max_size=4), min_size=1, max_size=4))

    def does(some: tuple[int, ...]) -> bool:
        return any(way <= set(some) for way in ways)

    kept, _ = solve(fewer(range(n)), does)
    assert does(kept)
    assert all(not does(tuple(k for k in kept if k != part)) for part in kept)


@given(NEEDED, st.data())
def test_a_window_holds_what_is_needed(case: tuple[int, set[int]], data: st.DataObject) -> None:
    n, needed = case
    near = data.draw(st.lists(st.integers(0, n), min_size=1, max_size=3))
    kept, asked = solve(growing(range(n), near), lambda some: needed <= set(some))
    assert needed <= set(kept)
    assert list(kept) == sorted(kept)
    assert asked <= 12


def test_what_lies_close_is_found_at_once() -> None:
    kept, asked = solve(growing(range(500), (300, 500)), lambda some: {299, 300, 498} <= set(some))
    assert len(kept) <= 8
    assert asked <= 4


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_the_least_number_is_found(low: int, extra: int, threshold: int) -> None:
    high = low + extra
    threshold = min(threshold, high)
    found, asked = solve(least(low, high), lambda n: n >= threshold)
    assert found == max(low, threshold)
    assert asked <= 12


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_coarse_search_is_near(high: int, threshold: int) -> None:
    threshold = min(threshold, high)
    found, _ = solve(least(1, high, coarse=8), lambda n: n >= threshold)
    assert threshold <= found <= max(1, threshold * 8 / 7 + 1)


def test_a_steady_fault_needs_two_successes_and_one_failure() -> None:
    test = Sequential(rate_of(3, 3))
    assert test.tell(True) is None
    assert test.tell(True) is True
    assert Sequential(rate_of(3, 3)).tell(False) is False


def test_a_flaky_fault_is_given_time() -> None:
    test = Sequential(rate_of(3, 10))
    told = [test.tell(False) for _ in range(5)]
    assert told == [None] * 5
    assert test.tell(True) is None


@given(st.floats(0.05, 0.95))
def test_every_test_ends(rate: float) -> None:
    for answer in (True, False):
        test = Sequential(rate)
        assert any(test.tell(answer) is answer for _ in range(200))


def error_rate(rate: float, true_rate: float, wrong: bool) -> float:
    drawn = random.Random(5)
    errors = 0
    for _ in range(600):
        test = Sequential(rate)
        while (held := test.tell(drawn.random() < true_rate)) is None:
            pass
        errors += held is wrong
    return errors / 600


def test_errors_are_as_rare_as_stated() -> None:
    for rate in (0.2, 0.5, 0.9):
        assert error_rate(rate, rate, wrong=False) < 0.13
        assert error_rate(rate, rate / 4, wrong=True) < 0.13


@settings(max_examples=25, deadline=None)
@given(NEEDED, st.sampled_from([0.3, 0.6, 1.0]), st.integers(0, 10_000))
def test_a_flaky_oracle_is_shrunk_as_well(case: tuple[int, set[int]], rate: float, seed: int) -> None:
    n, needed = case
    drawn = random.Random(seed)

    def holds(some: tuple[int, ...]) -> bool:
        test = Sequential(rate_of(round(100 * rate), 100))
        while True:
            held = test.tell(needed <= set(some) and drawn.random() < rate)
            if held is not None:
                return held

    kept, _ = solve(fewer(range(n)), holds)
    assert needed <= set(kept)  # never lost: without them it cannot reproduce
    assert len(kept) <= len(needed) + (0 if rate == 1.0 else n // 3 + 6)
