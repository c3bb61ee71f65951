from __future__ import annotations

import json
import math

from soak.detect.calibration import Bounds
from soak.detect.evidence import Evidence, Sighting, hit_bar, log_e_values, shape_of
from soak.detect.verdict import Alarm, Verdict

BOUNDS = Bounds(tau=1e-3, p0=0.01, m0=0.02, controls=1332)
STREAM = "chunked-burst/1024/prefill"
OTHER = "shared-prefix/512/prefill"
A = 1e6


def show(
    evidence: Evidence,
    scores: list[float],
    stream: str = STREAM,
    pair: float | None = None,
    cold: float = 1e-5,
) -> list[Alarm]:
    alarms = []
    for number, score in enumerate(scores):
        sighting = Sighting(number, stream, score, pair, None if pair is None else cold)
        alarm = evidence.take(sighting, BOUNDS)
        if alarm is not None:
            alarms.append(alarm)
    return alarms


def test_a_few_exceedances_in_a_row_that_a_pair_confirms_are_corrupt() -> None:
    evidence = Evidence(A)
    (alarm,) = show(evidence, [2e-3] * 6, pair=2e-3)
    assert (alarm.verdict, alarm.channel, alarm.stream) == (Verdict.CORRUPT, "absolute", STREAM)
    assert alarm.shape == "chunked-burst"
    assert alarm.probes == (0, 1, 2, 3)
    assert "confirmed" in alarm.evidence


def test_evidence_asks_for_a_pair_just_before_it_reaches_the_bar() -> None:
    evidence = Evidence(A)
    asked = []
    for number in range(6):
        asked.append(evidence.reaches_bar(STREAM, 2e-3, BOUNDS))
        assert not evidence.reaches_bar(STREAM, 5e-4, BOUNDS)
        evidence.take(Sighting(number, STREAM, 2e-3, 2e-3 if asked[-1] else None, 0.0), BOUNDS)
    assert asked == [False, False, False, True, False, False]  # CORRUPT stands: no more pairs


def test_without_a_pair_it_stays_suspect_until_one_shows_it() -> None:
    evidence = Evidence(A)
    (alarm,) = show(evidence, [2e-3] * 6)
    assert alarm.verdict is Verdict.SUSPECT
    assert "no confirming pair" in alarm.evidence
    assert show(evidence, [2e-3] * 2, pair=1e-5) == []
    assert evidence.reaches_bar(STREAM, 2e-3, BOUNDS)
    (alarm,) = show(evidence, [2e-3], pair=2e-3)
    assert alarm.verdict is Verdict.CORRUPT


def test_a_pair_that_does_not_show_it_or_whose_cold_differs_leaves_it_suspect() -> None:
    (alarm,) = show(Evidence(A), [2e-3] * 6, pair=1e-5)
    assert alarm.verdict is Verdict.SUSPECT
    assert "did not show it again" in alarm.evidence
    (alarm,) = show(Evidence(A), [2e-3] * 6, pair=2e-3, cold=3e-3)
    assert alarm.verdict is Verdict.SUSPECT


def test_loud_scores_alarm_through_magnitude_where_tau_is_blind() -> None:
    blind = Bounds(tau=0.49, p0=0.01, m0=0.02, controls=1332)
    evidence = Evidence(A)
    alarms = [evidence.take(Sighting(i, STREAM, 0.3, 0.3, 0.0), blind) for i in range(8)]
    (alarm,) = [alarm for alarm in alarms if alarm is not None]
    assert (alarm.verdict, alarm.channel) == (Verdict.CORRUPT, "magnitude")
    assert hit_bar(blind) == 0.01


def test_streams_add_up_and_those_with_a_part_are_named() -> None:
    gauge = Evidence(A)
    show(gauge, [2e-3] * 3)
    evidence = Evidence(1.9 * math.exp(gauge.main.log_stream(STREAM)))
    assert show(evidence, [2e-3] * 3, pair=2e-3) == []
    (alarm,) = show(evidence, [2e-3] * 3, stream=OTHER, pair=2e-3)
    assert alarm.stream in (STREAM, OTHER)
    assert f"2 streams have a part in it: {STREAM}, {OTHER}" in alarm.evidence


def test_a_further_stream_has_to_reach_the_bar_by_itself() -> None:
    evidence = Evidence(A)
    show(evidence, [2e-3] * 40, pair=2e-3)
    assert evidence.main.log_sum() > evidence.log_bar
    assert not evidence.reaches_bar(OTHER, 2e-3, BOUNDS)
    (alarm,) = show(evidence, [2e-3] * 6, stream=OTHER, pair=2e-3)
    assert alarm.stream == OTHER
    assert alarm.probes == (0, 1, 2, 3)


def test_what_was_over_before_belongs_to_no_later_alarm() -> None:
    evidence = Evidence(A)
    show(evidence, [2e-3] * 2, pair=2e-3)
    show(evidence, [1e-5] * 2000)
    (alarm,) = show(evidence, [2e-3] * 6)
    assert alarm.verdict is Verdict.SUSPECT  # the confirming pair is 2,000 quiet probes old
    assert alarm.probes == (0, 1, 2, 3)


def test_quiet_months_do_not_eat_the_evidence() -> None:
    """After 20,000 quiet probes a fault is found as fast as at the start."""
    fresh, old = Evidence(A), Evidence(A)
    show(old, [1e-5] * 20_000)
    faulty = [2e-3 if i % 5 == 0 else 1e-5 for i in range(400)]
    (first,) = show(fresh, faulty, pair=2e-3)
    (second,) = show(old, faulty, pair=2e-3)
    assert second.probes[-1] <= first.probes[-1]


def test_paired_makes_suspect_only_and_once_per_stream() -> None:
    evidence = Evidence(A)
    alarms = [evidence.take_pair(i, STREAM, True, 0.6) for i in range(200)]
    (alarm,) = [alarm for alarm in alarms if alarm is not None]
    assert (alarm.verdict, alarm.channel) == (Verdict.SUSPECT, "paired")
    assert evidence.main.streams() == ()
    half = Evidence(A)
    assert not any(half.take_pair(i, STREAM, i % 2 == 0, 0.6) for i in range(5000))


def test_channels_are_told_apart() -> None:
    evidence = Evidence(A)
    show(evidence, [2e-3] * 2)
    evidence.take_pair(1, STREAM, True, 0.6)
    channels = evidence.channels()[STREAM]
    assert set(channels) == {"absolute", "magnitude", "paired"}
    total = math.log(math.exp(channels["absolute"]) + math.exp(channels["magnitude"]))
    assert math.isclose(total, evidence.main.log_stream(STREAM))


def test_forgetting_and_restarting() -> None:
    evidence = Evidence(A)
    show(evidence, [2e-3] * 6, pair=2e-3)
    show(evidence, [2e-3] * 2, stream="shared-prefix/512/decode")
    evidence.restart("prefill")
    assert evidence.main.streams() == ("shared-prefix/512/decode",)
    assert show(evidence, [2e-3] * 6, pair=2e-3) == []  # restarting takes no alarm back
    evidence.forget(STREAM)
    assert len(show(evidence, [2e-3] * 6, pair=2e-3)) == 1


def test_state_round_trip() -> None:
    evidence = Evidence(A)
    show(evidence, [2e-3] * 3 + [1e-5] * 5, pair=2e-3)
    evidence.take_pair(1, STREAM, True, 0.6)
    again = Evidence(A)
    again.restore(json.loads(json.dumps(evidence.state(), allow_nan=False)))
    assert again.state() == evidence.state()
    assert show(again, [2e-3] * 6) == show(evidence, [2e-3] * 6)


def test_names() -> None:
    assert shape_of(STREAM) == "chunked-burst"
    assert len(log_e_values(1e-5, BOUNDS)) == 10
