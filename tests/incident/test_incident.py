"""What an alarm becomes: the probe that shows it best, the time it holds, and what can be said of it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.incident.candidates import candidates
from soak.incident.history import history_of
from soak.incident.incident import Incident
from soak.incident.journal_reader import JournalReader
from soak.incident.rebuild import read_incident, read_trace
from soak.incident.trace import Case, Origin, Seen, Sent, Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.runners.faults import BY_NAME
from tests.incident.journalled import KEEP, Run
from tests.incident.traces import about, random_ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def closed(run: Run) -> tuple[JournalReader, Incident]:
    run.journal.close()
    reader = JournalReader(run.path)
    return reader, reader.incidents()[0]


async def test_the_latest_of_the_probes_that_are_far_off_is_the_case(path: Path) -> None:
    run = Run(path)
    run.load(range(40))
    sizes = {1: 0.9, 2: 0.8, 3: 0.1, 4: 0.0}
    for number, size in sizes.items():
        run.session.corrupt = lambda namespace, _, off=size: 0.0 if namespace else off  # type: ignore[misc]
        await run.probe(number)
    run.journal.alarm(run.alarm(1, 2, 3))
    _, incident = closed(run)
    assert incident.number == 2
    assert incident.alarm.probes == (1, 2, 3)


async def test_an_alarm_about_controls_shows_the_latest_probe_of_their_kind(path: Path) -> None:
    run = Run(path)
    run.load(range(40))
    for number in range(1, 9):
        await run.probe(number)
    run.journal.alarm(run.alarm())
    _, incident = closed(run)
    prefill = [result.number for result in run.probes if result.kind is ResumeKind.PREFILL]
    assert incident.number in prefill
    stored = run.probes[incident.number - 1]
    assert stored.divergence is not None


async def test_a_time_too_long_is_held_at_both_ends(path: Path) -> None:
    run = Run(path, keep=replace(KEEP, window_us=60_000_000, before_us=2_000_000, after_us=1_000_000))
    run.load(range(10))
    run.now_s += 600.0
    await run.probe(1)
    run.journal.alarm(run.alarm(1))
    reader, incident = closed(run)
    assert len(incident.ranges) == 2
    assert "only both ends are" in incident.note
    trace, notes = read_trace(reader, incident.id)
    assert notes == [incident.note]
    assert trace.case.victim is not None
    assert trace.case.at_us > 600_000_000


async def test_what_is_asked_after_the_alarm_belongs_to_the_window_for_a_while(path: Path) -> None:
    run = Run(path)
    run.load(range(20))
    await run.probe(1)
    run.journal.alarm(run.alarm(1))
    run.load(range(20, 60), gap_s=0.1)  # the window ends three seconds after the alarm
    reader, incident = closed(run)
    trace, _ = read_trace(reader, incident.id)
    after = {sent.index for sent in trace.sent if sent.origin is Origin.LOAD and sent.index >= 20}
    assert 20 in after
    assert 59 not in after


# What can be said of a trace


def prompt(ids: np.ndarray, sent_us: int, **changes: object) -> Sent:
    made = Sent(
        index=0,
        step=0,
        part=0,
        origin=Origin.LOAD,
        shape="shared-prefix",
        request=0,
        at_us=sent_us,
        sent_us=sent_us,
        ids=ids.astype(np.int32),
        max_new_tokens=1,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def story() -> Trace:
    """A prefix is written beside another prompt, touched by a third, and asked again beside a fourth."""
    prefix, other = random_ids(200, 1), random_ids(200, 2)
    question = np.concatenate([prefix, random_ids(20, 3)])
    sent = (
        prompt(prefix, 0, index=1),
        prompt(other, 50, index=2),
        prompt(np.concatenate([prefix[:130], random_ids(9, 4)]), 1000, index=3),
        prompt(prefix[:140], 1500, index=4, namespace="another tenant's"),
        prompt(question, 5000, index=9, origin=Origin.PROBE, logprob_start_len=200),
        prompt(other, 5050, index=5, abort_us=10),
        prompt(random_ids(50, 5), 9000, index=6),
    )
    ends = (100, 120, 1100, 1600, 5100, 5060, 9100)
    seen = tuple(
        Seen("ok", end, cached_tokens=cached)
        for end, cached in zip(ends, (0, 0, 128, 0, 200, 0, 0), strict=True)
    )
    case = Case(
        number=9,
        kind=ResumeKind.PREFILL,
        shape="shared-prefix",
        stream="shared-prefix/256/prefill",
        ids=question,
        start=200,
        warm=np.full(19, -1.0),
        cold=np.full(19, -2.0),
        victim=0,
        at_us=5000,
    )
    return Trace(sent, seen, case)


def test_the_history_tells_who_wrote_who_touched_and_who_was_there() -> None:
    history = history_of(story())
    assert history.writer == 0
    assert history.beside_writer == (1,)
    assert [(touch.place, touch.shared) for touch in history.touched] == [(2, 130)]
    assert history.beside_probe == (5,)
    assert history.aborted == (5,)
    assert history.retracted == history.from_host == ()


def test_a_trace_without_its_writer_has_a_history_all_the_same() -> None:
    trace = story()
    history = history_of(replace(trace, case=replace(trace.case, victim=None)))
    assert history.writer is None
    assert history.beside_writer == ()
    assert [touch.place for touch in history.touched] == [0, 2]


def named(trace: Trace, **fingerprint: Any) -> list[str]:
    said = about(fingerprint={"simulator": True, **fingerprint})
    geometry = {**said.spec["geometry"], "hybrid": True, "state_grid": 64}
    spec = {**said.spec, "geometry": geometry}
    found = candidates(trace, history_of(trace), replace(said, spec=spec))
    return [one.fault.name for one in found]


HYBRID: dict[str, Any] = {"uses_mamba_radix_cache": True, "mamba_radix_cache_strategy": "extra_buffer"}


def test_faults_with_a_condition_that_did_not_hold_are_no_candidates() -> None:
    trace = story()
    found = named(trace, **HYBRID, enable_hierarchical_cache=False, enable_lora=False)
    assert {"stale-track-rows", "state-not-restored", "middle-truncated"} <= set(found)
    assert not {"host-tier-race", "abort-slot-reuse", "tenant-key-collision"} & set(found)
    assert not {"nan-logprob", "identity-swap"} & set(found)
    assert "stale-track-rows" not in named(trace, **HYBRID | {"mamba_radix_cache_strategy": "no_buffer"})
    assert "stale-track-rows" not in named(trace, **HYBRID, disable_cuda_graph=True)
    alone = replace(trace, sent=trace.sent[:1] + trace.sent[2:5], seen=trace.seen[:1] + trace.seen[2:5])
    assert "stale-track-rows" not in named(alone, **HYBRID), "nothing was prefilled together with anything"


def test_a_release_with_the_fix_is_no_candidate_and_a_simulator_has_no_release() -> None:
    trace = story()
    assert "stale-track-rows" in named(trace, **HYBRID, version="0.5.17", simulator=False)
    fixed = BY_NAME["stale-track-rows"].fixed
    assert "stale-track-rows" not in named(trace, **HYBRID, version=fixed, simulator=False)
    assert "stale-track-rows" in named(trace, **HYBRID, version=fixed)


def test_faults_are_told_apart_by_what_they_look_like() -> None:
    trace = story()
    null = replace(trace, case=replace(trace.case, outcome=ProbeOutcome.NON_FINITE))
    assert named(null, **HYBRID) == ["nan-logprob"]
    swapped = replace(trace, case=replace(trace.case, outcome=ProbeOutcome.BROKEN_INVARIANT))
    assert named(swapped, **HYBRID) == ["identity-swap"]


def test_what_decode_wrote_points_at_decode_first() -> None:
    trace = story()
    writer = replace(trace.seen[0], output_ids=random_ids(300, 6))
    decoded = replace(trace, seen=(writer, *trace.seen[1:]), case=replace(trace.case, kind=ResumeKind.DECODE))
    said = about(fingerprint={"simulator": True, **HYBRID})
    geometry = {**said.spec["geometry"], "hybrid": True, "state_grid": 64, "track_interval": 256}
    found = candidates(decoded, history_of(decoded), replace(said, spec={**said.spec, "geometry": geometry}))
    assert found[0].fault.name == "stale-track-tail"
    assert any("mamba_track_interval" in words for words in found[0].held)
    assert any("largest captured" in words for words in found[0].unseen)


async def test_an_answer_of_load_that_is_an_alarm_by_itself(path: Path) -> None:
    run = Run(path)
    run.load(range(20))
    result = await run.probe(1)
    spoiled = replace(
        result, number=0, outcome=ProbeOutcome.NON_FINITE, detail="output logprob 3 of 9 is null"
    )
    seen = run.observations[-1]
    seen.answer.output_logprobs = np.array([-1.0, np.nan])
    run.journal.spoiled(seen, spoiled)
    stored = run.alarm(0)
    alarm = replace(stored.alarm, stream=spoiled.stream, channel="non-finite")
    run.journal.alarm(replace(stored, alarm=alarm))
    reader, incident = closed(run)
    assert incident.number == -1
    trace, about_it = read_incident(reader, incident.id)
    case = trace.case
    assert (case.number, case.outcome, case.detail) == (-1, ProbeOutcome.NON_FINITE, spoiled.detail)
    assert case.ids.tolist() == np.concatenate([seen.ids, seen.answer.output_ids]).tolist()
    assert case.start == len(seen.ids) - 1
    assert np.isnan(case.warm[1])
    assert case.victim is not None
    assert trace.sent[case.victim].index == seen.item.index
    assert about_it.alarm["channel"] == "non-finite"
