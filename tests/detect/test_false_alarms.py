from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.detect.run_length import SUMS, YEAR_S, run_length_for, run_length_words


def test_one_soak_and_one_false_alarm_a_year() -> None:
    assert run_length_for(1.0, 1, 4.0) == pytest.approx(2 * 4 * 365.25 * 86400)


@given(st.floats(1e-3, 100), st.integers(1, 10_000), st.floats(0.01, 1000))
def test_a_year_at_that_rate_has_so_many(per_year: float, fleet: int, rate: float) -> None:
    length = run_length_for(per_year, fleet, rate)
    alarms = sum(rate * YEAR_S / length for _ in range(SUMS)) * fleet
    assert alarms == pytest.approx(per_year)


@pytest.mark.parametrize(
    ("per_year", "fleet", "rate"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (float("inf"), 1, 1), (-1, 1, 1)]
)
def test_numbers_that_make_no_sense(per_year: float, fleet: int, rate: float) -> None:
    with pytest.raises(ValueError, match="give a number over 0"):
        run_length_for(per_year, fleet, rate)


def test_more_false_alarms_than_a_run_length_can_mean() -> None:
    with pytest.raises(ValueError, match=r"run length of 6\.31 probes.*allow fewer"):
        run_length_for(1e7, 1, 1.0)


def test_the_words_say_for_whom_and_at_which_rate() -> None:
    words = run_length_words(0.5, 40, 2.0)
    for part in ("0.5 false alarms a year", "fleet of 40 soaks", "2 probes a second each"):
        assert part in words
    assert "for one soak" in run_length_words(1, 1, 1)
