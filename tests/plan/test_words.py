import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.plan.words import Draw, raw_words

seeds = st.integers(0, 2**63 - 1)


def test_words_are_philox_words_for_ever() -> None:
    # Written down once: if NumPy or the keying changes, every plan of every user changes with it.
    assert [hex(w) for w in raw_words(1, "shape", 0, 3).tolist()] == GOLDEN_WORDS


GOLDEN_WORDS = ["0x2b96c7cc1215c3d7", "0x7c32fa7811405dd2", "0xf912cd81230fe56b"]


@given(seeds, st.integers(0, 2**40), st.integers(1, 40), st.integers(1, 40))
def test_a_longer_read_starts_with_the_shorter(seed: int, index: int, short: int, more: int) -> None:
    long = raw_words(seed, "x", index, short + more)
    assert np.array_equal(long[:short], raw_words(seed, "x", index, short))


@given(seeds, st.integers(0, 1000))
def test_purposes_indices_and_nonces_are_streams_of_their_own(seed: int, index: int) -> None:
    streams = [
        raw_words(seed, "a", index, 4),
        raw_words(seed, "b", index, 4),
        raw_words(seed, "a", index + 1, 4),
        raw_words(seed, "a", index, 4, nonce=1),
        raw_words(seed + 1, "a", index, 4),
    ]
    assert len({s.tobytes() for s in streams}) == len(streams)


@given(seeds, st.integers(1, 10**12))
def test_below_stays_below(seed: int, n: int) -> None:
    draw = Draw(seed, "below", 0)
    assert all(0 <= draw.below(n) < n for _ in range(20))


@given(seeds, st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any))
def test_weighted_never_gives_what_weighs_nothing(seed: int, weights: list[int]) -> None:
    draw = Draw(seed, "weighted", 0)
    assert all(weights[draw.weighted(weights)] > 0 for _ in range(30))


def test_draws_are_near_uniform() -> None:
    draw = Draw(7, "uniform", 0)
    counts = np.bincount([draw.below(10) for _ in range(20_000)], minlength=10)
    # chi-square with 9 degrees of freedom; 33.7 is the 1e-4 quantile
    assert float(np.sum((counts - 2000.0) ** 2 / 2000.0)) < 33.7


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to choose"):
        Draw(1, "x", 0).below(0)
