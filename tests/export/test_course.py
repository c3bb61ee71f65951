from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.verdict import DetectorReport, Verdict
from soak.export.course import FIRST_BIN_S, MOST_BINS, OFFSETS, Course
from soak.export.course_file import COURSE_NAME, CourseFile, read_course_file
from soak.oracle.divergence import diverge
from soak.oracle.probe import ProbeOutcome
from tests.export.samples import observation, probe, report
from tests.report.folders import a_course, compared

NOTHING = DetectorReport(Verdict.CALIBRATING)


def sample(
    course: Course, at_s: float, asked: int = 0, report: DetectorReport = NOTHING, **more: Any
) -> None:
    arguments: dict[str, Any] = {"verdict": "CLEAN", "delivered": asked, "in_flight": 1, "gone": False}
    arguments |= more
    course.sample(at_s, report, asked=asked, **arguments)


def total(course: Course, name: str) -> int:
    return sum(held.values.get(name, 0) for held in course.bins.values())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60))
def test_however_long_it_lasts_it_stays_small_and_loses_no_count(times: list[float]) -> None:
    course = Course()
    for number, at_s in enumerate(times, 1):
        sample(course, at_s, asked=3 * number)
        course.observe_load(observation())
    assert len(course.bins) <= MOST_BINS
    assert max(course.bins) < MOST_BINS
    assert total(course, "asked") == 3 * len(times)
    assert sum(held.latency.count for held in course.bins.values()) == len(times)
    assert course.width_s == FIRST_BIN_S or course.width_s * MOST_BINS >= max(times) / 2


def test_a_week_is_small_on_the_disk() -> None:
    course = Course()
    for minute in range(0, 7 * 24 * 60, 7):
        sample(course, 60.0 * minute, asked=minute, report=report())
        if minute % 10 == 0:
            course.observe_load(observation(chunk_s=(10.0 + minute % 7, 11.0 + minute % 13)))
            course.observe_probe(compared(minute % 50, 10.0 ** -(minute % 9)))
    assert len(json.dumps(course.as_dict())) < 1_000_000


def test_joined_bins_keep_the_last_state_and_the_largest_figure() -> None:
    course = Course()
    for second in range(2 * MOST_BINS):
        sample(course, float(second), in_flight=second % 7, verdict=f"v{second}")
    held = course.bins[0].values
    assert course.width_s == 2 * FIRST_BIN_S
    assert held["verdict"] == "v1"
    assert course.bins[2].values["in_flight"] == 5
    assert course.bins[3].values["in_flight"] == 6


def test_what_was_written_is_read_again_and_gone_on_with(tmp_path: Path) -> None:
    kept = a_course(tmp_path)
    values = json.loads(json.dumps(kept.course.as_dict()))
    assert json.loads(json.dumps(Course.from_dict(values).as_dict())) == values
    values_again = kept.course.as_dict()
    assert json.loads(json.dumps(values_again)) == values, "what is over is written as it was"


@pytest.mark.parametrize("tokens", [1, 2, 5, 63, 64, 65, 5000])
def test_every_token_is_in_one_group_of_offsets(tokens: int) -> None:
    course = Course()
    off = np.arange(1.0, tokens + 1)
    course.observe_control("prefill", diverge(off, np.zeros(tokens)), off)
    groups = course.kinds["prefill"].offsets["control"]
    assert sum(sketch.count for sketch in groups.values()) == tokens
    for first, sketch in groups.items():
        assert sketch.least == pytest.approx(first)
        place = OFFSETS.index(first)
        if place + 1 < len(OFFSETS):
            assert sketch.greatest <= OFFSETS[place + 1] - 1


def test_amnesia_by_depth_and_length() -> None:
    course = Course()
    for number in range(3):
        result = compared(number, 0.1)
        result.resume_boundary, result.victim_tokens = 512, 700
        course.observe_probe(result)
    assert {cell: sketch.count for cell, sketch in course.amnesia.items()} == {(512, 512): 3}


def test_an_invalid_probe_is_counted_and_nothing_else() -> None:
    course = Course()
    course.observe_probe(probe(outcome=ProbeOutcome.EVICTED))
    assert total(course, "invalid") == 1
    assert course.kinds == {}


def test_another_server_counts_from_nothing() -> None:
    course = Course()
    sample(course, 1.0, asked=100)
    course.another_server()
    sample(course, 2.0, asked=5)
    assert total(course, "asked") == 105


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", 2),
        ("width_s", 0.0),
        ("bins", [[MOST_BINS, {}]]),
        ("bins", [[0, {"latency": 3}]]),
        ("bins", [[n, {}] for n in range(MOST_BINS + 1)]),
        ("kinds", {"prefill": {}}),
        ("kinds", {"prefill": {"offsets": {"probe": {"5": {}}, "control": {}}, "scores": {}}}),
        ("amnesia", [[1, 2]]),
    ],
)
def test_what_no_run_wrote_is_refused(name: str, value: Any) -> None:
    said = Course().as_dict() | {name: value}
    with pytest.raises((ValueError, TypeError, LookupError)):
        Course.from_dict(said)


def test_a_resumed_run_goes_on_with_its_course(tmp_path: Path) -> None:
    a_course(tmp_path).close({"verdict": "CLEAN"})
    said: list[str] = []
    clock = read_course_file(tmp_path / COURSE_NAME)["saved_s"] + 100.0
    later = CourseFile(tmp_path, "0123456789ab", {}, said.append, resume=True, clock=lambda: clock)
    assert later.at_s == pytest.approx(140.0)
    assert total(later.course, "asked") == 78
    other = CourseFile(tmp_path, "another", {}, said.append, resume=True, clock=lambda: clock)
    assert other.course.bins == {}
    (tmp_path / COURSE_NAME).write_text("{")
    assert not said
    assert CourseFile(tmp_path, "0123456789ab", {}, said.append, resume=True).course.bins == {}
    assert "cannot be gone on with" in said[0]


def test_a_disk_that_refuses_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    kept = CourseFile(tmp_path / "gone", "0123456789ab", {}, said.append)
    for _ in range(3):
        kept._write(kept._values({}, ended=False))
    kept.close({})
    assert len(said) == 1
    assert "a report will lack" in said[0]


def test_an_old_state_never_lands_on_the_last(tmp_path: Path) -> None:
    kept = CourseFile(tmp_path, "0123456789ab", {}, lambda _words: None)
    old = kept._values({"verdict": "CALIBRATING"}, ended=False)
    kept.close({"verdict": "CLEAN"})
    kept._write(old)
    assert read_course_file(tmp_path / COURSE_NAME)["summary"] == {"verdict": "CLEAN"}


TIMES = st.lists(st.floats(0.0, 5000.0), max_size=6)


@settings(max_examples=30, deadline=None)
@given(TIMES, TIMES, st.floats(0.0, 5000.0))
def test_processes_side_by_side_are_one_course(
    mine: list[float], theirs: list[float], later_s: float
) -> None:
    courses = []
    for times in (mine, theirs):
        course = Course()
        for number, at_s in enumerate(sorted(times), 1):
            sample(course, at_s, asked=number)
            course.observe_load(observation())
            course.observe_probe(compared(number, 0.1))
        courses.append(course)
    whole, other = courses
    whole.beside(other, later_s)
    assert total(whole, "asked") == total(whole, "valid") == len(mine) + len(theirs)
    assert sum(held.latency.count for held in whole.bins.values()) == len(mine) + len(theirs)
    assert max(whole.bins, default=0) < MOST_BINS
    assert json.loads(json.dumps(Course.from_dict(whole.as_dict()).as_dict())) == json.loads(
        json.dumps(whole.as_dict())
    )


def test_what_is_in_flight_at_the_same_time_adds_up() -> None:
    one, other = Course(), Course()
    sample(one, 5.0, in_flight=3)
    sample(other, 2.0, in_flight=4, gone=True)
    one.beside(other, 3.0)
    assert one.bins[5].values["in_flight"] == 7
    assert one.bins[5].values["gone"]
