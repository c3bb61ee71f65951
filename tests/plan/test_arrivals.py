import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.plan.arrivals import _unit_gaps, arrivals, walk


def test_constant_is_exact() -> None:
    process = arrivals("constant", "3", 1)
    assert [process.at_us(i) for i in (0, 1, 2, 3, 3_000_000)] == [0, 333333, 666666, 1000000, 10**12]


def test_bursts_come_at_once_and_keep_the_rate() -> None:
    process = arrivals("burst", "2", 1, burst=4)
    assert [process.at_us(i) for i in range(9)] == [0] * 4 + [2_000_000] * 4 + [4_000_000]
    assert process.at_us(4_000_000) == 2 * 10**12


def test_a_ramp_goes_from_nothing_to_twice_the_rate_and_again() -> None:
    process = arrivals("ramp", "8", 1)
    times = [process.at_us(i) for i in range(2 * 256 + 1)]
    assert times[:4] == [0, 2_000_000, 2_828_427, 3_464_101]  # 32 s, times the roots of 0 to 3 over 256
    assert times[256] == 32_000_000
    assert times[255] - times[254] == pytest.approx(1e6 / 16, rel=0.01)
    assert [t - 32_000_000 for t in times[256:]] == times[:257]


@given(st.integers(0, 2**63 - 1), st.integers(0, 5000), st.integers(0, 5000))
def test_poisson_is_a_function_of_the_index(seed: int, one: int, other: int) -> None:
    forward, back = arrivals("poisson", "2.5", seed), arrivals("poisson", "2.5", seed)
    low, high = sorted((one, other))
    assert [forward.at_us(low), forward.at_us(high)] == [back.at_us(high), back.at_us(low)][::-1]
    assert forward.at_us(low) <= forward.at_us(high)


def test_poisson_has_the_rate_and_the_spread_it_says() -> None:
    process = arrivals("poisson", "4", 11)
    times = [process.at_us(i) / 1e6 for i in range(20_000)]
    assert times[-1] == pytest.approx(5000, rel=0.03)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((g - mean) ** 2 for g in gaps) / len(gaps)
    assert variance == pytest.approx(mean * mean, rel=0.06)  # an exponential's mean is its deviation


@pytest.mark.parametrize("kind", ["constant", "poisson", "burst", "ramp"])
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_share_the_indices_out(kind: str, shards: int) -> None:
    whole = dict(_first(walk(arrivals(kind, "5", 3, 6), 0, 1), 60))
    parts: dict[int, int] = {}
    for shard in range(shards):
        part = _first(walk(arrivals(kind, "5", 3, 6), shard, shards), 60)
        parts.update({index: at for index, at in part if index < 60})
    assert parts == whole


def _first(process: object, count: int) -> list[tuple[int, int]]:
    return [next(process) for _ in range(count)]  # type: ignore[call-overload]


def test_no_rate_is_an_error() -> None:
    with pytest.raises(ValueError, match="above 0"):
        arrivals("constant", "0", 1)
    assert Fraction("1e-05") == Fraction(1, 100_000)  # how repr() writes small floats


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_the_integer_logarithm_is_the_logarithm(words: list[int]) -> None:
    gaps = _unit_gaps(np.array(words, np.uint64)) / 2.0**40
    wanted = [-math.log((word | 1) / 2**64) for word in words]
    assert gaps == pytest.approx(wanted, abs=2**-21)


def test_a_jump_far_ahead_is_cheap_enough_to_resume_a_week() -> None:
    assert arrivals("poisson", "5", 1).at_us(200_000) == pytest.approx(4e10, rel=0.02)
