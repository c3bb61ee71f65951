import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.oracle.amnesia import MIN_DENOMINATOR, amnesia

COLD = np.full(24, -1.0)
BLANK = np.full(24, -1.5)


@given(st.floats(0, 1))
def test_from_remembering_all_to_having_forgotten_all(share: float) -> None:
    seen = amnesia(COLD + share * (BLANK - COLD), COLD, BLANK)
    assert seen.ratio == pytest.approx(share, abs=1e-9)
    assert seen.denominator == pytest.approx(12.0)


def test_without_a_far_context_to_forget_it_says_nothing() -> None:
    seen = amnesia(COLD - 1, COLD, COLD - MIN_DENOMINATOR / 48)
    assert seen.ratio is None
    assert seen.clipped is None


def test_one_token_cannot_make_an_alarm_of_the_clipped_ratio() -> None:
    warm = COLD.copy()
    warm[3] -= 9.0
    seen = amnesia(warm, COLD, BLANK)
    assert seen.ratio == pytest.approx(9 / 12)
    assert seen.clipped == pytest.approx(1 / 12)


def test_shapes_and_nan() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        amnesia(COLD, COLD, BLANK[:3])
    with pytest.raises(ValueError, match="not finite"):
        amnesia(COLD, COLD, BLANK * np.nan)


def test_the_least_that_can_be_forgotten_still_counts() -> None:
    """Halves and quarters, so that the sum is the bound to the last bit."""
    cold = np.full(4, -1.0)
    assert amnesia(cold, cold, cold - MIN_DENOMINATOR / 4).ratio == 0.0
