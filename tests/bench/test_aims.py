from __future__ import annotations

from dataclasses import replace

import pytest

from soak.bench.detect.aims import aims, lost
from soak.bench.detect.outcome import Outcome, signal_of
from soak.bench.detect.table import tables
from tests.bench.made_up import broken, outcome, recorded


def unmet(found: Outcome) -> list[str]:
    return [aim.words for aim in aims(found) if not aim.met]


def test_what_is_found_fast_meets_the_aims_but_not_ten_times_a_rule_as_fast() -> None:
    """The made-up rule at 0.0025 needs as few probes as soak."""
    assert unmet(outcome()) == ["spoiling 5%: a tenth of the probes of the public rule at 0.0025"]


def test_a_clean_alarm_and_a_drift_inside_the_bounds_are_against_the_aims() -> None:
    found = outcome()
    clean = found.clean["exact"]
    alarmed = replace(clean, extended=replace(clean.extended, alarms={"absolute": 1}))
    drifted = replace(found.drifts[0], alarms={"paired": 2})
    found = replace(found, clean={**found.clean, "exact": alarmed}, drifts=(drifted,))
    assert "no false alarm on clean probes" in unmet(found)
    assert "drift inside the bounds does not alarm" in unmet(found)
    assert lost(found) == ["clean exact server: {'absolute': 1} over 128 probes"]
    spoiled = replace(alarmed, at_calibration=("control-floor",))
    spoiled_too = replace(found, clean={**found.clean, "exact": spoiled})
    assert lost(spoiled_too)[0] == "clean exact server: control-floor in calibration"
    crossed = replace(found, drifts=(replace(drifted, exceeded=0.2),))
    assert "drift inside the bounds does not alarm" not in unmet(crossed)


def test_a_fault_that_some_run_missed_is_lost_unless_no_comparison_can_tell() -> None:
    found = outcome(found=0.5)
    assert lost(found) == ["short-tail-chunk on production servers: found in 50% of 2 runs"]
    unseen = replace(found, faults=(replace(found.faults[0], unseen="only a canary sees it"),))
    assert lost(unseen) == []


def test_under_the_floor_exact_mode_is_enough() -> None:
    found = outcome(found=0.0, score=1e-4)
    assert not found.faults[0].over_floor
    assert lost(found) == []
    assert "under the floor" in tables(found, "about", aims(found))


def test_the_truth_is_what_differs_at_all_and_what_is_no_number() -> None:
    truth = [recorded(1, 0.0, together=False), recorded(2, 0.2, act=1, together=True), broken(3)]
    signal = signal_of(truth)
    assert signal.share == pytest.approx(0.5)
    assert signal.hard == pytest.approx(1 / 3)
    assert signal.score == pytest.approx(0.2)
    assert (signal.together, signal.apart) == (1.0, 0.0)


def test_the_tables_say_what_was_found() -> None:
    text = tables(outcome(), "about it", aims(outcome()))
    row = (
        "| `short-tail-chunk` | 25% | 0.1 | 4 (-) | - | onset | 4 (-) | 100% | 4 (-) | - | onset | 0.01 | - |"
    )
    assert row in text
    assert "4 of 10 runs of 3,000 probes had a false alarm" in text
    assert "| slowly | 96 | 0.0% (0.0%) |" in text
    assert "1 of 8" in text
