"""Canaries: another's answer is seen, whoever was answered first; a model's own noise never is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.oracle.canaries import LEAST, Canaries
from soak.sglang.exchange import TokenIds


def answer(key: int, change: int | None = None, n: int = 16) -> TokenIds:
    ids = (np.arange(n) * 7 + 100 * key).astype(np.int32)
    if change is not None:
        ids[change:] += 1  # a greedy choice went the other way, and everything after it
    return ids


def known(*keys: int) -> Canaries[str]:
    canaries: Canaries[str] = Canaries()
    for key in keys * 2:
        assert canaries.observe(key, answer(key), "earlier", "earlier") == []
    return canaries


def test_an_answer_that_is_anothers_is_told_once_with_both_names() -> None:
    canaries = known(1, 2)
    ((words, of),) = canaries.observe(1, answer(2), "load request 9", "load request 9")
    assert of == "load request 9"
    assert words.startswith("load request 9: canary 1 was answered with the answer of canary 2")
    canaries.observe(1, answer(1), "its own", "its own")
    assert canaries.observe(1, answer(2), "load request 10", "load request 10") == []
    assert canaries.judged == 5


def test_a_swap_before_anybody_knew_is_told_when_both_are_known() -> None:
    canaries: Canaries[str] = Canaries()
    assert canaries.observe(1, answer(2), "the first", "the first") == []
    assert canaries.observe(2, answer(1), "the first", "the first") == []
    told = [found for key in (1, 1, 2, 2) for found in canaries.observe(key, answer(key), "later", "later")]
    assert sorted(words.split(": ")[0] for words, _ in told) == ["the first", "the first"]
    assert {of for _, of in told} == {"the first"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15)), max_size=60))
def test_noise_of_its_own_is_never_a_swap(asked: list[tuple[int, int]]) -> None:
    canaries = known(0, 1, 2, 3)
    for key, change in asked:
        assert canaries.observe(key, answer(key, change), "noisy", "noisy") == []


def test_a_model_that_answers_all_alike_is_not_judged() -> None:
    canaries: Canaries[str] = Canaries()
    for key in (1, 2, 1, 2, 3):
        assert canaries.observe(key, answer(0), "same", "same") == []
        assert canaries.observe(key, np.zeros(16, np.int32), "looping", "looping") == []


@pytest.mark.parametrize("n", [0, LEAST - 1])
def test_short_answers_say_nothing(n: int) -> None:
    canaries = known(1, 2)
    assert canaries.observe(1, answer(2, n=n), "short", "short") == []


def test_another_server_knows_no_answer() -> None:
    canaries = known(1, 2)
    canaries.clear()
    assert canaries.observe(1, answer(2), "new server", "new server") == []


def test_memory_is_bounded() -> None:
    canaries: Canaries[str] = Canaries()
    for number in range(500):
        canaries.observe(1, answer(number), "all different", "all different")
    assert len(canaries._books[1].seen) <= 32
