from __future__ import annotations

import math

import numpy as np
import pytest

from soak.bench.detect.clean import drift, false_alarms, measured_run_length
from soak.bench.detect.drawing import course, svg
from soak.bench.detect.grading import Grader, quantiles
from soak.bench.detect.resample import BLOCK, acts_of, bootstrap, made_rare
from soak.bench.detect.rules import Cusum
from soak.detect.calibration import Bounds
from soak.detect.settings import DetectSettings
from tests.bench.made_up import QUIET, broken, calibration, recorded, run_of

SETTINGS = DetectSettings(p0_max=0.2, run_length=1e6)


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader(calibration(80), SETTINGS)


def test_a_fault_on_every_probe_is_found_by_every_rule(grader: Grader) -> None:
    grade = grader.run(run_of(40, spoiled=1))
    assert grade.corrupt is not None
    assert grade.corrupt <= 16
    assert grade.tokens == 64 * grade.corrupt
    assert grade.public == (16, 16)
    assert grade.cusum is not None
    assert grade.channel in ("absolute", "magnitude", "ceiling-onset")


def test_runs_do_not_teach_each_other(grader: Grader) -> None:
    first = grader.run(run_of(40, spoiled=2))
    grader.run(run_of(40, spoiled=1))
    assert grader.run(run_of(40, spoiled=2)) == first


def test_a_clean_run_alarms_nowhere(grader: Grader) -> None:
    grade = grader.run(run_of(200, spoiled=0, seed=4))
    assert (grade.alarm, grade.corrupt, grade.alarms, grade.public) == (None, None, {}, (None, None))


def test_a_hard_alarm_counts_as_a_probe_and_an_invalid_one_does_not(grader: Grader) -> None:
    from soak.oracle.probe import ProbeOutcome

    evicted = recorded(1, outcome=ProbeOutcome.EVICTED)
    grade = grader.run([evicted, recorded(2), broken(3)])
    assert (grade.probes, grade.alarm, grade.corrupt, grade.channel) == (2, 2, 2, "non-finite")
    assert grade.tokens == 64


def test_a_fault_that_spoils_the_controls_alarms_in_calibration() -> None:
    spoiled = calibration(80)
    loud = type(spoiled)(
        controls=tuple(
            type(c)(c.kind, type(c.divergence)(64, 0, 1, 1, 1, 1, 1, 1, 1, 0.4), c.under_load)
            for c in spoiled.controls
        ),
        colds=spoiled.colds,
        hard=0,
        refused={},
    )
    assert [alarm.channel for alarm in Grader(loud, SETTINGS).at_calibration] == ["control-floor"]


def test_quantiles_count_a_run_without_an_alarm_as_infinite() -> None:
    held = quantiles([3, 5, None, 4, 9])
    assert (held.median, held.p90, held.found) == (5, math.inf, 0.8)
    assert quantiles([None]).median == math.inf


def test_the_bootstrap_draws_whole_blocks_of_one_run() -> None:
    runs = [[recorded(100 * r + i) for i in range(64)] for r in range(1, 4)]
    drawn = [p.result.number for p in bootstrap(runs, 10 * BLOCK + 5, seed=1)]
    assert len(drawn) == 10 * BLOCK + 5
    for start in range(0, len(drawn), BLOCK):
        block = drawn[start : start + BLOCK]
        assert block == list(range(block[0], block[0] + len(block)))
    assert drawn == [p.result.number for p in bootstrap(runs, 10 * BLOCK + 5, seed=1)]
    assert len({n // 100 for n in drawn}) == 3


def test_a_fault_is_made_rare_out_of_whole_acts() -> None:
    runs = [[recorded(i, act=i // 2, together=i % 4 < 2) for i in range(40)] for _ in range(2)]
    assert len(acts_of(runs, together=True)) == len(acts_of(runs, together=False)) == 20
    drawn = made_rare(runs, 100, 2000, seed=3)
    assert len(drawn) == 2000
    assert all(a.act == b.act for a, b in zip(drawn[::2], drawn[1::2], strict=True))
    assert np.mean([p.together for p in drawn]) == pytest.approx(0.1, abs=0.03)
    with pytest.raises(ValueError, match="one sort is missing"):
        made_rare([[recorded(1)]], 100, 10, seed=0)


def test_false_alarms_are_counted_for_every_rule(grader: Grader) -> None:
    probes = run_of(320, spoiled=0) + run_of(64, spoiled=1)
    counted = false_alarms(grader, probes, Cusum([QUIET, 1.3 * QUIET, 0.7 * QUIET], 1e6))
    assert counted.probes == 384
    assert sum(counted.alarms.values()) > 0
    assert counted.public == (4, 4)
    assert counted.cusum > 1
    assert counted.over_ceiling == {"ceiling-onset": 64}
    quiet = false_alarms(grader, run_of(320, spoiled=0), None)
    assert (quiet.alarms, quiet.public, quiet.cusum, quiet.over_ceiling) == ({}, (0, 0), 0, {})


def test_the_measured_run_length_is_at_least_the_guaranteed_one() -> None:
    """Scores exceed tau exactly as often as p0 allows, which is the worst null there is."""
    rng = np.random.default_rng(8)
    scores = np.where(rng.random(4000) < 0.05, 2e-3, 1e-3)
    runs = [[recorded(i, float(s)) for i, s in enumerate(scores[r : r + 400])] for r in range(0, 4000, 400)]
    bounds = {"prefill": Bounds(tau=1.5e-3, p0=0.05, m0=0.01, controls=100)}
    measured = measured_run_length(runs, bounds, 100.0, repeats=60, steps=1500)
    assert measured.alarms > 0
    assert 100.0 <= measured.mean < 1500


def test_drift_is_measured_against_the_bounds_in_force(grader: Grader) -> None:
    bounds = {"prefill": Bounds(tau=1e-2, p0=0.1, m0=0.05, controls=80)}
    inside = drift("slightly noisier", grader, [run_of(64, spoiled=0)], bounds)
    assert (inside.bound_crossed, inside.alarms, inside.exceeded) == (False, {}, 0.0)
    outside = drift("much noisier", grader, [run_of(64, spoiled=2, score=0.02)], bounds)
    assert outside.bound_crossed
    assert outside.exceeded == outside.late == 0.5


def test_the_picture_shows_the_bar_the_alarm_and_what_exceeded(grader: Grader) -> None:
    drawn = course(grader, run_of(120, spoiled=2))
    assert drawn.alarm
    assert drawn.log_bar == pytest.approx(math.log(1e6))
    assert sum(step.exceeds for step in drawn.steps) >= drawn.alarm // 2
    text = svg(drawn, "a < b & c")
    assert f"alarm at probe {drawn.alarm}" in text
    assert "a &lt; b &amp; c" in text
    assert text.count("<circle") == sum(step.exceeds for step in drawn.steps)
    from xml.etree import ElementTree

    assert ElementTree.fromstring(text).tag.endswith("svg")
    quiet = course(grader, run_of(30, spoiled=0))
    assert quiet.alarm == 0
    assert "alarm at probe" not in svg(quiet, "quiet")
