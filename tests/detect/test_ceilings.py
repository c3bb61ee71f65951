from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.detect.ceilings import (
    AMNESIA,
    FLOOR_CONTROLS,
    HITS,
    ONSET,
    ONSET_CEILING,
    ceiling_confirmed,
    ceilings_over,
    control_floor_reason,
    control_onset_reason,
    declared_hit,
    over_declared,
)
from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm, Verdict
from soak.oracle.probe import ProbeResult
from tests.detect.synthetic import divergence, lost, probe, repeated


def onset(number: int, nats: float = 0.3, **given: object) -> ProbeResult:
    result = probe(number, 0.02, **given)  # type: ignore[arg-type]
    result.divergence = divergence(0.02, first16=nats)
    return result


def confirmed(result: ProbeResult, pair: float = 0.3, cold: float = 0.01) -> ProbeResult:
    result.cold_repeat = result.confirmation_cold = divergence(1e-5, first16=cold)
    result.confirmation = divergence(0.02, first16=pair)
    return result


def run(detector: Detector, *results: ProbeResult) -> list[Alarm]:
    return [alarm for result in results for alarm in detector.observe(result)]


def detector(bound: float | None = None) -> Detector:
    return Detector(DetectSettings(max_abs_d=bound))


def test_what_is_over_a_ceiling() -> None:
    assert ceilings_over(probe(0, amnesia=lost(0.25, 6.0))) == (AMNESIA,)
    assert ceilings_over(probe(0, amnesia=lost(0.9, 5.9))) == ()
    assert ceilings_over(probe(0, amnesia=lost(0.24))) == ()
    assert ceilings_over(onset(0, 0.25)) == (ONSET,)
    assert ceilings_over(onset(0, math.nan)) == ()  # fewer than 16 tokens
    assert ceilings_over(onset(0, amnesia=lost(0.5))) == (AMNESIA, ONSET)


def test_three_of_twenty_is_corrupt_without_any_calibration() -> None:
    watching = detector()
    assert "ceiling-onset" in str(watching.wants_repeat(onset(1)))
    assert run(watching, confirmed(onset(1)), confirmed(onset(2))) == []
    (alarm,) = run(watching, confirmed(onset(3)))
    assert (alarm.verdict, alarm.channel, alarm.probes) == (Verdict.CORRUPT, ONSET, (1, 2, 3))
    assert alarm.stream == "shared-prefix/1024/prefill"
    assert watching.wants_repeat(onset(4)) is None
    assert run(watching, confirmed(onset(4))) == []


def test_three_within_more_than_twenty_is_not() -> None:
    watching = detector()
    for start in (0, 10, 20, 30):
        assert run(watching, confirmed(onset(start)), *(probe(start + i) for i in range(1, 10))) == []


def test_streams_are_counted_apart() -> None:
    watching = detector()
    assert run(watching, *(confirmed(onset(i, boundary=100 * 4**i)) for i in range(4))) == []


def test_a_second_cold_pass_must_be_there_and_stand() -> None:
    watching = detector()
    assert run(watching, *(onset(i) for i in range(10))) == []
    assert any("10 probes over a ceiling do not count" in reason for reason in watching.report().reasons)
    assert run(watching, *(confirmed(onset(i), cold=0.07) for i in range(10, 20))) == []
    assert (
        run(watching, *(confirmed(onset(i), cold=0.0625) for i in range(20, 23)))[0].verdict
        is Verdict.CORRUPT
    )


def test_amnesia_with_colds_that_differ_by_as_much_is_none() -> None:
    watching = detector()
    for number in range(10):
        result = repeated(probe(number, 0.01, amnesia=lost(0.5, 8.0)), 0.01)
        result.cold_repeat = divergence(1e-3, k1=-0.03)  # 24 tokens of it are 0.09 of 8 nats
        assert watching.observe(result) == ()
    result.cold_repeat = divergence(1e-3, k1=-0.02)  # 0.06
    assert run(watching, result, result, result)[0].channel == AMNESIA


def test_pairs_that_never_show_it_leave_it_suspect_until_one_does() -> None:
    watching = detector()
    (alarm,) = run(watching, *(confirmed(onset(i), pair=0.01) for i in range(6)))
    assert alarm.verdict is Verdict.SUSPECT
    assert "0 of 3 confirming pairs" in alarm.evidence
    assert watching.wants_repeat(onset(7)) is not None
    (alarm,) = run(watching, confirmed(onset(7)))
    assert alarm.verdict is Verdict.CORRUPT


def test_colds_alone_must_do_where_no_pair_could_be_made() -> None:
    results = [confirmed(onset(i)) for i in range(3)]
    for result in results:
        result.confirmation = None
    (alarm,) = run(detector(), *results)
    assert alarm.verdict is Verdict.CORRUPT
    assert "no confirming pair could be made" in alarm.evidence


def over(number: int, cold: float = 1e-6, pair: float = 1e-3, **given: object) -> ProbeResult:
    result = probe(number, 1e-8, **given)  # type: ignore[arg-type]
    result.divergence = divergence(1e-8, max_abs=1e-3)
    result.cold_repeat = divergence(1e-9, max_abs=cold)
    result.confirmation = divergence(1e-8, max_abs=pair)
    return result


def test_declared_bound_on_three_probes_of_any_stream() -> None:
    watching = detector(1e-4)
    assert "declared bound" in str(watching.wants_repeat(over(1)))
    assert run(watching, over(1), over(2, boundary=100), *(probe(i, 1e-10) for i in range(3, 90))) == []
    (alarm,) = run(watching, over(90))
    assert (alarm.verdict, alarm.channel, alarm.probes) == (Verdict.CORRUPT, "declared-bound", (1, 2, 90))
    assert alarm.stream == over(90).stream
    other = [over(100 + i, boundary=100) for i in range(2)]
    (alarm,) = run(watching, *other)  # a second stream has to reach three by itself
    assert alarm.stream == other[0].stream


def test_declared_bound_needs_a_cold_pass_under_it() -> None:
    watching = detector(1e-4)
    assert run(watching, *(over(i, cold=2e-4) for i in range(9))) == []
    unrepeated = [over(i) for i in range(9)]
    for result in unrepeated:
        result.cold_repeat = None
    assert run(watching, *unrepeated) == []


@pytest.mark.parametrize(("pair", "shows"), [(0.25, True), (0.2499, False)])
def test_a_pair_shows_it_from_half_of_it_on(pair: float, shows: bool) -> None:
    forgot = confirmed(probe(1, 1.0, amnesia=lost(0.5)))
    forgot.confirmation = divergence(pair)  # a quarter of the score: differences of half the size
    assert ceiling_confirmed(forgot, AMNESIA) is shows
    assert ceiling_confirmed(confirmed(onset(1), pair=pair / 2), ONSET) is shows  # of a ceiling of 0.25


def test_an_alarm_says_what_was_over_which_bound_and_what_the_pairs_showed() -> None:
    (alarm,) = run(detector(), *(confirmed(onset(i)) for i in range(3)))
    assert "median |d| of the first 16 tokens over 0.25" in alarm.evidence
    assert "3 of 3 confirming pairs" in alarm.evidence
    forgot = [confirmed(onset(i, 0.0, amnesia=lost(0.5))) for i in range(3)]
    (alarm,) = run(detector(), *forgot)
    assert alarm.channel == AMNESIA
    assert "amnesia over 0.25" in alarm.evidence
    (alarm,) = run(detector(1e-4), *(over(i) for i in range(3)))
    assert "max |d| over 0.0001" in alarm.evidence


def test_what_is_at_the_declared_bound_is_not_over_it() -> None:
    bound = 1e-3  # what ``over`` puts into its probes
    assert not over_declared(over(1), bound)
    assert declared_hit(over(1), bound) is None
    lower = 0.5 * bound
    hit = declared_hit(over(1, cold=lower, pair=lower), lower)
    assert hit is not None  # a cold pass at the bound stands
    assert hit.shows is False  # a pair at the bound does not show it


def test_declared_bound_that_no_pair_shows_is_suspect() -> None:
    (alarm,) = run(detector(1e-4), *(over(i, pair=1e-6) for i in range(4)))
    assert alarm.verdict is Verdict.SUSPECT


def test_no_declared_bound_no_alarm() -> None:
    assert run(detector(), *(over(i) for i in range(9))) == []


@pytest.mark.parametrize(
    ("control", "controls", "cold", "colds", "speaks"),
    [
        (3.1e-3, 8, 1e-6, 5, True),
        (2.9e-3, 8, 1e-6, 5, False),  # a cold floor under 1e-4 counts as 1e-4
        (0.1, 8, 4e-3, 5, False),
        (0.1, 8, 3e-3, 5, True),
        (0.1, 7, 1e-6, 5, False),
        (0.1, 8, 1e-6, 4, False),
        (None, 0, None, 0, False),
    ],
)
def test_control_floor(
    control: float | None, controls: int, cold: float | None, colds: int, speaks: bool
) -> None:
    assert bool(control_floor_reason(control, controls, cold, colds)) is speaks


def test_control_floor_is_suspect_with_its_reason() -> None:
    watching = detector()
    for _ in range(5):
        watching.add_cold_repeat(divergence(1e-5), False)
    alarms = [a for _ in range(20) for a in watching.add_control("decode", divergence(0.05), False)]
    (alarm,) = alarms
    assert (alarm.verdict, alarm.channel, alarm.stream) == (Verdict.SUSPECT, "control-floor", "*/*/decode")
    assert "500 times" in alarm.evidence


def test_single_controls_that_are_far_off_are_suspect_though_their_median_is_not() -> None:
    watching = detector()
    for number in range(60):
        far = number in (9, 30, 51)
        watching.add_control("decode", divergence(1e-5, first16=0.9 if far else 0.01), False)
        watching.add_cold_repeat(divergence(1e-5), False)
    (alarm,) = watching.alarms
    assert (alarm.verdict, alarm.channel, alarm.stream) == (Verdict.SUSPECT, "control-onset", "*/*/decode")
    assert "3 of the last 52 controls" in alarm.evidence
    again = detector()
    again.restore(watching.state())
    assert again.alarms == watching.alarms
    again.acknowledge(alarm)
    again.add_control("decode", divergence(1e-5, first16=0.9), False)
    assert [a.channel for a in again.alarms] == ["control-onset"]  # it goes on


@given(st.lists(st.floats(0, 5), max_size=60))
def test_control_onset_needs_hits_and_enough_controls(onsets: list[float]) -> None:
    far = sum(onset >= ONSET_CEILING for onset in onsets)
    assert bool(control_onset_reason(onsets)) is (far >= HITS and len(onsets) >= FLOOR_CONTROLS)
