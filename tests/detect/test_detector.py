from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.ceilings import FLOOR_COLDS
from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm, Verdict
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from tests.detect.synthetic import ask_and_observe, calibrate, divergence, lost, probe

SMOKE = DetectSettings(p0_max=0.2)
PREFILL, DECODE = ResumeKind.PREFILL, ResumeKind.DECODE
HEALTHY = [1e-4, 1.2e-4, 0.8e-4]


def calibrated(settings: DetectSettings = SMOKE) -> Detector:
    detector = Detector(settings)
    calibrate(detector, HEALTHY)
    return detector


def test_nothing_seen_is_calibrating() -> None:
    report = Detector(SMOKE).report()
    assert report.verdict is Verdict.CALIBRATING
    assert report.reasons == ("no valid probe yet",)
    assert "No guarantee" in report.statement
    assert report.log_sum is None


def test_the_statement_says_where_the_run_length_comes_from() -> None:
    words = "At most one false alarm a year."
    assert words not in Detector(DetectSettings(p0_max=0.2, run_length_words=words)).report().statement
    told = calibrated(DetectSettings(p0_max=0.2, run_length_words=words)).report().statement
    assert words in told


def test_a_healthy_server_is_clean_and_says_what_that_rests_on() -> None:
    detector = Detector(SMOKE)
    assert detector.wants_control(PREFILL)
    assert detector.controls_missing("prefill") == 60
    assert detector.wants_cold_repeat()
    for number in range(200):
        result = probe(number, HEALTHY[number % 3], control=divergence(HEALTHY[number % 3]))
        result.cold_repeat = divergence(1e-5) if detector.wants_cold_repeat() else None
        assert ask_and_observe(detector, result, 0.0) == ()
    assert not detector.wants_control(PREFILL)
    assert not detector.wants_cold_repeat()
    report = detector.report()
    assert report.verdict is Verdict.CLEAN
    (line,) = report.kinds
    assert (line.mode, line.ready, line.controls) == ("tolerance", True, 200)
    assert line.threshold == pytest.approx(1.2e-4)
    assert line.p0 is not None and line.p0 <= 0.2
    assert line.control_floor == pytest.approx(1e-4)
    assert line.cold_floor == pytest.approx(1e-5)
    for words in ("1e+06 probes", "99% confidence", "prefill: score over 0.00012", "Outside any run length"):
        assert words in report.statement
    assert report.log_bar == pytest.approx(math.log(1e6))
    assert report.log_sum is not None and report.log_sum < report.log_bar
    assert set(report.log_evidence) == {"shared-prefix/1024/prefill"}


def test_a_fault_on_some_probes_is_corrupt_and_named() -> None:
    detector = calibrated()
    rng = np.random.default_rng(2)
    alarms: list[Alarm] = []
    for number in range(400):
        bad = number >= 100 and rng.random() < 0.7
        shape = "chunked-burst" if number % 2 else "long-context"
        bad = bad and shape == "chunked-burst"
        score = 2e-3 if bad else HEALTHY[number % 3]
        alarms += ask_and_observe(detector, probe(number, score, shape=shape), score)
    (alarm,) = alarms
    assert (alarm.verdict, alarm.channel, alarm.shape) == (Verdict.CORRUPT, "absolute", "chunked-burst")
    report = detector.report()
    assert report.verdict is Verdict.CORRUPT
    assert report.alarms == (alarm,)
    assert report.reasons[0].startswith("CORRUPT by absolute on chunked-burst/1024/prefill")


def test_probes_made_before_calibration_count_once_it_holds() -> None:
    detector = Detector(SMOKE)
    for number in range(30):
        detector.observe(probe(number, 2e-3))
    assert detector.report().verdict is Verdict.CALIBRATING
    assert detector.report().log_sum is None
    calibrate(detector, HEALTHY)
    (alarm,) = detector.report().alarms
    assert alarm.verdict is Verdict.SUSPECT  # nobody ran confirming pairs for them
    assert "no confirming pair" in alarm.evidence
    (alarm,) = ask_and_observe(detector, probe(31, 2e-3), 2e-3)
    assert alarm.verdict is Verdict.CORRUPT


def test_probes_that_stand_out_early_get_pairs_that_count_later() -> None:
    detector = Detector(SMOKE)
    for _ in range(10):
        detector.add_control(PREFILL, divergence(1e-4), False)
    asked = 0
    for number in range(30):
        result = probe(number, 2e-3)
        asked += detector.wants_repeat(result) is not None
        ask_and_observe(detector, result, 2e-3)
    assert asked == 3
    calibrate(detector, HEALTHY)
    assert detector.report().verdict is Verdict.CORRUPT


def test_a_kind_without_calibration_holds_clean_back_from_the_fifth_probe_on() -> None:
    detector = calibrated()
    for number in range(9):
        detector.observe(probe(number))
    for number in range(4):
        detector.observe(probe(number, kind=DECODE, control_note="the control resumed at 0, not at 512"))
    report = detector.report()
    assert report.verdict is Verdict.CLEAN
    assert any("decode: 4 valid probes are too few" in reason for reason in report.reasons)
    detector.observe(probe(4, kind=DECODE, control_note="the control resumed at 0, not at 512"))
    report = detector.report()
    assert report.verdict is Verdict.CALIBRATING
    (words,) = [reason for reason in report.reasons if reason.startswith("decode")]
    assert "none of 5 tried could be made: the control resumed at 0, not at 512" in words
    assert "could not be made" in report.kinds[0].note


@pytest.mark.parametrize("kind", [ResumeKind.HOST, ResumeKind.RETRACTED, ResumeKind.IN_STEPS])
def test_a_kind_that_nobody_waits_for_does_not_hold_clean_back(kind: ResumeKind) -> None:
    detector = calibrated()
    for number in range(9):
        detector.observe(probe(number))
        detector.observe(probe(100 + number, kind=kind))
    assert detector.report().verdict is Verdict.CLEAN


def test_nothing_is_asked_again_for_a_probe_that_is_none() -> None:
    detector = Detector(DetectSettings(max_abs_d=1e-4))
    far = divergence(1e-8, max_abs=1e-3)
    assert detector.wants_repeat(probe(1, divergence=far)) is not None
    assert detector.wants_repeat(probe(1, divergence=far, outcome=ProbeOutcome.BOUNDARY_MOVED)) is None
    assert detector.wants_repeat(probe(1, divergence=None)) is None


def test_a_few_probes_of_nothing_but_uncalibrated_kinds_are_not_clean() -> None:
    detector = Detector(SMOKE)
    detector.observe(probe(1))
    report = detector.report()
    assert report.verdict is Verdict.CALIBRATING
    assert any("(0 of 60 controls, none was tried so far)" in reason for reason in report.reasons)
    detector.add_control(PREFILL, divergence(1e-4), False)
    assert any("(1 of 60 controls);" in reason for reason in detector.report().reasons)


def test_as_many_repeated_colds_as_the_floor_takes_and_no_more() -> None:
    detector = Detector(SMOKE)
    for _ in range(FLOOR_COLDS):
        assert detector.wants_cold_repeat()
        detector.add_cold_repeat(divergence(1e-5), False)
    assert not detector.wants_cold_repeat()


@pytest.mark.parametrize("outcome", [ProbeOutcome.NON_FINITE, ProbeOutcome.BROKEN_INVARIANT])
def test_hard_alarms_at_once_and_once(outcome: ProbeOutcome) -> None:
    detector = Detector(SMOKE)
    result = probe(
        3, outcome=outcome, detail="warm pass: the logprob at position 700 is null", divergence=None
    )
    assert detector.wants_repeat(result) is None
    (alarm,) = detector.observe(result)
    assert (alarm.verdict, alarm.channel) == (Verdict.CORRUPT, outcome.value.replace("_", "-"))
    assert "position 700" in alarm.evidence
    assert detector.observe(result) == ()
    assert any("2 probes in all" in reason for reason in detector.report().reasons)


def test_invalid_probes_teach_nothing() -> None:
    detector = Detector(SMOKE)
    result = probe(1, outcome=ProbeOutcome.EVICTED, divergence=None)
    assert detector.wants_repeat(result) is None
    assert detector.observe(result) == ()
    assert detector.report().kinds == ()


def test_a_valid_probe_without_divergence_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no divergence"):
        Detector(SMOKE).observe(probe(1, divergence=None))


# Corrupt from the first minute: the controls are spoilt as well


def resume_is_broken(detector: Detector, **figures: Any) -> Verdict:
    """Every resume is wrong, those of the controls too; the cold passes are fine."""
    rng = np.random.default_rng(8)
    for number in range(120):
        score = float(rng.lognormal(math.log(figures["score"]), 0.4))
        result = probe(number, score, control=divergence(score * float(rng.lognormal(0.0, 0.4))))
        result.divergence = divergence(score, first16=figures["first16"], max_abs=1.0)
        result.amnesia = lost(figures["amnesia"]) if number % 4 == 0 else None
        wanted = detector.wants_repeat(result)
        if wanted or detector.wants_cold_repeat():
            result.cold_repeat = result.confirmation_cold = divergence(1e-9)
        if wanted:
            result.confirmation = divergence(score, first16=figures["first16"], max_abs=1.0)
        detector.observe(result)
    return detector.report().verdict


def channels(detector: Detector) -> set[str]:
    return {alarm.channel for alarm in detector.report().alarms}


def test_state_not_restored_is_corrupt_by_the_onset() -> None:
    detector = Detector(SMOKE)
    assert resume_is_broken(detector, score=0.08, first16=0.6, amnesia=0.0) is Verdict.CORRUPT
    assert channels(detector) == {"ceiling-onset", "control-floor"}


def test_context_lost_with_a_soft_onset_is_corrupt_by_amnesia() -> None:
    detector = Detector(SMOKE)
    assert resume_is_broken(detector, score=0.02, first16=0.1, amnesia=0.4) is Verdict.CORRUPT
    assert "ceiling-amnesia" in channels(detector)


def test_under_the_ceilings_the_control_floor_still_speaks() -> None:
    detector = Detector(SMOKE)
    assert resume_is_broken(detector, score=0.005, first16=0.08, amnesia=0.1) is Verdict.SUSPECT
    assert channels(detector) == {"control-floor"}


def test_under_everything_learned_the_declared_bound_still_speaks() -> None:
    detector = Detector(DetectSettings(p0_max=0.2, max_abs_d=1e-4))
    assert resume_is_broken(detector, score=1e-4, first16=0.01, amnesia=0.0) is Verdict.CORRUPT
    assert channels(detector) == {"declared-bound"}


def test_noise_that_drifts_inside_the_bounds_does_not_alarm() -> None:
    """A server that gets noisier, up to the loudest of its own controls."""
    detector = Detector(DetectSettings(p0_max=0.01))
    rng = np.random.default_rng(6)
    calibrate(detector, rng.lognormal(-9.0, 0.5, 3000).tolist())
    (line,) = detector.report().kinds
    assert line.threshold is not None
    for number in range(3000):
        score = min(float(rng.lognormal(-9.0 + number / 3000, 0.5)), line.threshold)
        assert detector.observe(probe(number, score)) == ()
    assert detector.report().verdict is Verdict.CLEAN


def test_paired_makes_suspect_where_every_probe_is_a_little_worse() -> None:
    detector = Detector(SMOKE)
    rng = np.random.default_rng(9)
    for i in range(800):
        detector.add_control(PREFILL, divergence(float(rng.lognormal(-9.0, 0.5))), i % 2 == 0)
    number = 0
    while not detector.report().alarms and number < 400:
        score = float(rng.lognormal(-9.0, 0.5))
        detector.observe(probe(number, score * 1.4, control=divergence(score * 0.9)))
        number += 1
    (alarm,) = detector.report().alarms
    assert (alarm.verdict, alarm.channel) == (Verdict.SUSPECT, "paired")
    assert "prefill 0." in detector.report().statement


def test_acknowledging_starts_afresh() -> None:
    detector = calibrated()
    for number in range(30):
        ask_and_observe(detector, probe(number, 2e-3), 2e-3)
    (alarm,) = detector.report().alarms
    detector.acknowledge(alarm)
    assert detector.report().verdict is Verdict.CLEAN
    with pytest.raises(ValueError, match="no such alarm"):
        detector.acknowledge(alarm)
    again = [a for n in range(30) for a in ask_and_observe(detector, probe(n, 2e-3), 2e-3)]
    assert [a.verdict for a in again] == [Verdict.CORRUPT]


def test_acknowledging_a_hard_alarm_and_a_floor() -> None:
    detector = Detector(SMOKE)
    hard = probe(3, outcome=ProbeOutcome.NON_FINITE, detail="null", divergence=None)
    for _ in range(5):
        detector.add_cold_repeat(divergence(1e-5), False)
    for _ in range(8):
        detector.add_control(DECODE, divergence(0.1), False)
    detector.observe(hard)
    for alarm in detector.report().alarms:
        detector.acknowledge(alarm)
    assert detector.report().alarms == ()
    assert len(detector.observe(hard)) == 1
    assert len(detector.add_control(DECODE, divergence(0.1), False)) == 1


def test_an_alarm_that_stood_before_stands_again_once() -> None:
    detector = calibrated()
    for number in range(30):
        ask_and_observe(detector, probe(number, 2e-3), 2e-3)
    (alarm,) = detector.alarms
    fresh = calibrated()
    for _ in range(2):
        fresh.reinstate(alarm)
    assert fresh.alarms == fresh.report().alarms == (alarm,)
    assert fresh.report().verdict is Verdict.CORRUPT
    fresh.acknowledge(alarm)
    assert not fresh.report().alarms


probes = st.lists(
    st.builds(
        lambda score, shape, kind, control, pair, first16: (score, shape, kind, control, pair, first16),
        st.sampled_from([0.0, 1e-4, 1.1e-4, 2e-3, 0.1, 0.5]),
        st.sampled_from(["shared-prefix", "long-context"]),
        st.sampled_from([PREFILL, DECODE]),
        st.none() | st.sampled_from([0.0, 1e-4, 1.3e-4, 0.2]),
        st.sampled_from([0.0, 2e-3, 0.5]),
        st.sampled_from([0.0, 0.3]),
    ),
    max_size=150,
)


def feed(detector: Detector, drawn: list[tuple[Any, ...]], start: int = 0) -> list[object]:
    seen: list[object] = []
    for number, (score, shape, kind, control, pair, first16) in enumerate(drawn, start=start):
        result = probe(number, score, shape=shape, kind=kind, under_load=number % 3 == 0)
        result.divergence = divergence(score, first16=first16)
        result.control = None if control is None else divergence(control)
        wanted = detector.wants_repeat(result)
        seen += [wanted, *ask_and_observe(detector, result, pair)]
    return seen


@settings(max_examples=40, deadline=None)
@given(probes, probes, st.booleans(), st.sampled_from([None, 1e-3]))
def test_state_round_trip_goes_on_as_if_nothing_happened(
    before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], deterministic: bool, bound: float | None
) -> None:
    given = DetectSettings(
        p0_max=0.5, run_length=1e3, deterministic=deterministic, max_abs_d=bound, exact_tokens=512
    )
    detector, again = Detector(given), Detector(given)
    feed(detector, before)
    again.restore(json.loads(json.dumps(detector.state(), allow_nan=False)))
    assert again.report() == detector.report()
    assert feed(again, after, 1000) == feed(detector, after, 1000)
    assert again.report() == detector.report()
    assert again.state() == detector.state()


def test_another_version_of_the_state_is_refused() -> None:
    state = Detector(SMOKE).state() | {"version": 99}
    with pytest.raises(ValueError, match="version 99"):
        Detector(SMOKE).restore(state)


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="teleported"):
        Detector(SMOKE).wants_control("teleported")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.floats(1e-7, 0.4)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_how_streams_interleave_does_not_change_the_evidence(
    probes: list[tuple[str, float]], random: Random
) -> None:
    """The whole detector, both channels and the pairs: each stream in its own order, streams in any."""
    made = [
        probe(n, score, shape=shape, control=divergence(0.5 * score))
        for n, (shape, score) in enumerate(probes)
    ]
    queues = {shape: [r for r in made if r.shape == shape] for shape in "abcd"}
    mixed: list[ProbeResult] = []
    while waiting := [shape for shape in "abcd" if queues[shape]]:
        mixed.append(queues[random.choice(waiting)].pop(0))
    reports = []
    for order in (made, mixed):
        detector = Detector(DetectSettings(p0_max=0.2))
        for n in range(120):
            detector.add_control(ResumeKind.PREFILL, divergence(1e-4), under_load=bool(n % 2))
        for result in order:
            detector.observe(result)
        reports.append(detector.report())
    plain, other = reports
    assert plain.log_evidence == pytest.approx(other.log_evidence)
    assert plain.log_sum == pytest.approx(other.log_sum)
    assert plain.log_sum_paired == pytest.approx(other.log_sum_paired)
    assert plain.log_sum_paired is not None
    for stream, channels in plain.log_channels.items():
        assert channels == pytest.approx(other.log_channels[stream])
