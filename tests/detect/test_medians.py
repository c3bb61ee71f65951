from __future__ import annotations

import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.medians import LatestMedian


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e3), max_size=60), st.integers(1, 20))
def test_median_of_the_window(values: list[float], window: int) -> None:
    held = LatestMedian(window, values)
    latest = values[-window:]
    assert held.values() == latest
    assert len(held) == len(latest)
    assert held.median() == (statistics.median(latest) if latest else None)
