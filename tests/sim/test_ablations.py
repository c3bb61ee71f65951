"""Each fault shows with all its conditions; with any one taken away it does not. Healthy is exactly zero."""

from __future__ import annotations

import pytest

from soak.runners.faults import BY_NAME, FAULTS
from tests.sim.ablations import ABLATIONS

ON_ANY_RESUME = {"state-not-restored", "middle-truncated"}  # tests/sim/test_plain_faults.py
CASES = [(fault, condition.name) for fault in ABLATIONS for condition in BY_NAME[fault].conditions]


def test_every_published_fault_has_an_ablation() -> None:
    assert {f.name for f in FAULTS if f.report or f.conditions} - ON_ANY_RESUME == set(ABLATIONS)


@pytest.mark.parametrize("fault", list(ABLATIONS))
def test_with_all_conditions_it_shows(fault: str) -> None:
    ablation = ABLATIONS[fault]
    assert ablation.run(fault, planted=True) > ablation.bound


@pytest.mark.parametrize("fault", list(ABLATIONS))
def test_without_the_fault_nothing_shows(fault: str) -> None:
    assert ABLATIONS[fault].run(fault, planted=False) == 0.0


@pytest.mark.parametrize(("fault", "missing"), CASES)
def test_with_one_condition_missing_nothing_shows(fault: str, missing: str) -> None:
    assert ABLATIONS[fault].run(fault, planted=True, missing=missing) == 0.0
