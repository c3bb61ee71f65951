from __future__ import annotations

import numpy as np
import pytest

from soak.bench.detect.rules import Cusum, cusum_bar, public_rule


def test_the_public_rule_looks_at_whole_groups_of_16() -> None:
    quiet, loud = [1e-3] * 16, [1e-3] * 15 + [0.08]
    assert public_rule(quiet + loud, 0.005) == 32
    assert public_rule(quiet + loud[1:], 0.005) is None
    assert public_rule(quiet + loud, 0.006) is None
    assert public_rule([], 0.005) is None


def test_the_bar_of_a_cusum_gives_the_run_length_on_normal_scores() -> None:
    """Siegmund's approximation is good to a few per cent; 200 runs say it to about a tenth."""
    rng = np.random.default_rng(5)
    bar, totals, lengths = cusum_bar(500.0), np.zeros(400), np.zeros(400)
    running = np.ones(400, dtype=bool)
    while running.any():
        totals = np.maximum(0.0, totals + rng.standard_normal(400) - 0.5)
        lengths += running
        running &= totals <= bar
    assert lengths.mean() == pytest.approx(500.0, rel=0.2)


def test_a_cusum_counts_in_deviations_of_the_controls() -> None:
    rule = Cusum([1.0, 2.0, 3.0], run_length=1e6)
    assert rule.first_alarm([2.0] * 1000) is None
    assert rule.first_alarm([2.0] * 5 + [4.5] * 20) == 5 + int(cusum_bar(1e6) / 2.0) + 1
    with pytest.raises(ValueError, match="two controls"):
        Cusum([1.0], run_length=1e6)


def test_controls_that_agree_to_the_last_bit_leave_room_for_nothing() -> None:
    assert Cusum([0.0] * 10, run_length=1e6).first_alarm([0.0, 0.0, 1e-9]) == 3
