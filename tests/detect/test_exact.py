from __future__ import annotations

import json

import pytest

from soak.detect.detector import Detector
from soak.detect.exact import ExactMode
from soak.detect.settings import HANDFUL, DetectSettings
from soak.detect.verdict import Verdict
from soak.oracle.probe import ResumeKind
from tests.detect.synthetic import divergence, probe, repeated

PREFILL = ResumeKind.PREFILL
TOKENS = 64


def agreed(
    detector: Detector, kind: ResumeKind = PREFILL, loaded: bool = True, cold: bool = True
) -> Detector:
    """Just enough tokens that agree to the last bit."""
    for _ in range(detector.settings.exact_tokens // TOKENS):
        if cold:
            detector.add_cold_repeat(divergence(0.0, TOKENS), loaded)
        detector.add_control(kind, divergence(0.0, TOKENS), loaded)
    return detector


def deterministic() -> Detector:
    return Detector(DetectSettings(deterministic=True, exact_tokens=1024))


def mode(detector: Detector, kind: ResumeKind = PREFILL) -> str:
    return {line.kind: line.mode for line in detector.report().kinds}[kind.value]


def test_entered_only_with_the_servers_word() -> None:
    settings = DetectSettings(exact_tokens=1024)
    detector = agreed(Detector(settings))
    detector.observe(probe(1, 0.0, under_load=True))
    assert mode(detector) == "calibrating"


def test_entered_per_kind_once_colds_and_controls_agreed_long_enough() -> None:
    detector = deterministic()
    detector.observe(probe(1, 0.0, under_load=True))
    assert detector.wants_cold_repeat()
    assert detector.wants_control(PREFILL)
    agreed(detector)
    assert not detector.wants_cold_repeat()
    assert not detector.wants_control(PREFILL)
    assert detector.controls_missing(PREFILL) == 0
    assert mode(detector) == "exact"
    assert detector.report().verdict is Verdict.CLEAN
    detector.observe(probe(2, 0.0, kind=ResumeKind.DECODE, under_load=True))
    assert mode(detector, ResumeKind.DECODE) == "calibrating"


def test_more_controls_may_bring_it_until_it_is_there_and_never_without_the_servers_word() -> None:
    assert not Detector(DetectSettings()).exact_may_come(PREFILL)
    detector = deterministic()
    assert detector.exact_may_come(PREFILL)
    agreed(detector, loaded=True)
    agreed(detector, loaded=False)
    assert not detector.exact_may_come(PREFILL)


def test_not_entered_without_repeated_colds() -> None:
    detector = agreed(deterministic(), cold=False)
    detector.observe(probe(1, 0.0, under_load=True))
    assert mode(detector) == "calibrating"
    assert detector.wants_cold_repeat()


def test_one_token_may_be_all_that_is_wanted_and_none_may_not() -> None:
    assert DetectSettings(exact_tokens=1).exact_tokens == 1
    with pytest.raises(ValueError, match="at least 1"):
        DetectSettings(exact_tokens=0)


def test_one_token_short_is_short() -> None:
    exact = ExactMode(True, 128)
    exact.add_cold(divergence(0.0, 127), False)
    exact.add_control("prefill", divergence(0.0, 128), False)
    assert not exact.covers("prefill", False)
    exact.add_cold(divergence(0.0, 1), False)
    assert exact.covers("prefill", False)


def test_a_condition_never_tried_is_not_covered() -> None:
    """Controls alone say nothing of resumes under load."""
    detector = agreed(deterministic(), loaded=False)
    result = probe(1, 1e-10, under_load=True)
    assert detector.wants_repeat(result) is None
    assert detector.observe(repeated(result, 1e-10, cold=0.0)) == ()
    assert mode(detector) == "calibrating"


def test_a_kind_whose_controls_differ_stays_in_tolerance_mode_and_says_so() -> None:
    detector = deterministic()
    detector.add_control(PREFILL, divergence(1e-9, TOKENS), True)
    agreed(detector)
    detector.observe(probe(1, 0.0, under_load=True))
    (line,) = detector.report().kinds
    assert line.mode == "calibrating"
    assert "controls of this kind differ" in line.note


def test_a_difference_with_colds_that_agree_is_corrupt_at_once() -> None:
    detector = agreed(deterministic())
    result = probe(7, 1e-12, under_load=True)
    assert "exact mode" in str(detector.wants_repeat(result))
    (alarm,) = detector.observe(repeated(result, 1e-12, cold=0.0))
    assert (alarm.verdict, alarm.channel, alarm.probes) == (Verdict.CORRUPT, "exact", (7,))
    assert "differed too" in alarm.evidence
    assert "nowhere over the onset bound" in alarm.evidence
    later = probe(8, 1e-12, under_load=True)
    assert detector.wants_repeat(later) is None  # it stands already
    assert detector.observe(later) == ()
    assert detector.report().verdict is Verdict.CORRUPT


def test_a_difference_without_a_second_cold_is_suspect() -> None:
    detector = agreed(deterministic())
    (alarm,) = detector.observe(probe(7, 1e-6, under_load=True))
    assert alarm.verdict is Verdict.SUSPECT
    assert "not repeated" in alarm.evidence
    assert "from scored token 1 on" in alarm.evidence


def test_colds_that_differ_end_exact_mode_and_say_so() -> None:
    detector = agreed(deterministic())
    assert detector.observe(repeated(probe(7, 1e-6, under_load=True), 1e-6, cold=1e-7)) == ()
    report = detector.report()
    assert report.verdict is Verdict.CLEAN or report.verdict is Verdict.CALIBRATING
    assert any("left exact mode" in reason for reason in report.reasons)
    assert mode(detector) == "calibrating"
    assert detector.wants_control(PREFILL)
    assert not detector.wants_cold_repeat()
    agreed(detector)
    assert mode(detector) == "calibrating"  # for good


def test_controls_learned_in_exact_mode_are_forgotten_when_it_ends() -> None:
    detector = agreed(deterministic())
    assert detector.report().kinds[0].controls == 16
    detector.add_cold_repeat(divergence(1e-6), True)
    (line,) = detector.report().kinds
    assert line.controls == 0
    assert "left exact mode" in line.note


def test_a_control_that_differs_later_is_suspect_and_ends_it_for_its_kind() -> None:
    detector = agreed(agreed(deterministic()), ResumeKind.DECODE)
    result = probe(9, 0.0, under_load=True, control=divergence(1e-5))
    assert "control differs" in str(detector.wants_repeat(result))
    (alarm,) = detector.observe(repeated(result, 0.0, cold=0.0))
    assert (alarm.verdict, alarm.channel) == (Verdict.SUSPECT, "exact-control")
    detector.observe(probe(10, 0.0, kind=ResumeKind.DECODE, under_load=True))
    assert mode(detector) == "calibrating"
    assert mode(detector, ResumeKind.DECODE) == "exact"


def test_a_lone_probe_in_quiet_does_not_take_exact_mode_away() -> None:
    detector = agreed(deterministic())
    for number in range(6):
        detector.observe(probe(number, 0.0, under_load=True))
    detector.observe(probe(6, 0.0, under_load=False))
    assert mode(detector) == "exact"
    for number in range(7, 11):
        detector.observe(probe(number, 0.0, under_load=False))
    assert mode(detector) == "calibrating"


def test_state_round_trip() -> None:
    detector = agreed(deterministic())
    detector.observe(probe(1, 0.0, under_load=True))
    again = deterministic()
    again.restore(json.loads(json.dumps(detector.state(), allow_nan=False)))
    assert again.report() == detector.report()
    assert mode(again) == "exact"


def test_a_condition_met_by_fewer_than_a_handful_does_not_hold_the_other_up() -> None:
    exact = ExactMode(True, TOKENS)
    exact.add_cold(divergence(0.0, TOKENS), True)
    exact.add_control("prefill", divergence(0.0, TOKENS), True)
    for number in range(HANDFUL):
        exact.judge(probe(number, 0.0, under_load=True))
    for number in range(HANDFUL - 1):
        exact.judge(probe(number, 0.0, under_load=False))
    assert exact.in_force("prefill")
    exact.judge(probe(99, 0.0, under_load=False))
    assert not exact.in_force("prefill")
