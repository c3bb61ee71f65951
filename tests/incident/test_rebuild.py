"""The circle inside soak: what was sent goes into the journal and comes out of a trace exactly."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from soak.incident.about import spec_digest
from soak.incident.bundle import read_bundle, write_bundle
from soak.incident.journal_ids import TraceUnavailable
from soak.incident.journal_reader import JournalReader, UnknownIncident
from soak.incident.order import order_of
from soak.incident.rebuild import read_incident, read_trace, trace_of
from soak.incident.trace import Origin
from soak.plan.plan import Plan
from soak.plan.restored import spec_of
from tests.incident.journalled import SPEC, Run

LAST = 12


def incident(number: int) -> str:
    """The id of the incident about that probe."""
    return f"{number % 3:x}{number:x}000000"


async def soaked(path: Path) -> Run:
    run = Run(path)
    indices = 40
    run.load(range(indices))
    for number in range(1, LAST + 1):
        await run.probe(number)
        run.load(range(indices, indices + 3))
        indices += 3
    for number in range(1, LAST + 1):
        run.journal.alarm(run.alarm(number, name=incident(number)))
    run.journal.close()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return asyncio.run(soaked(tmp_path_factory.mktemp("run") / "journal.sqlite"))


@pytest.fixture
def journal(run: Run) -> Iterator[JournalReader]:
    reader = JournalReader(run.path)
    yield reader
    reader.close()


@pytest.fixture
def changed(run: Run, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copy(run.path, tmp_path / "journal.sqlite"))


def test_a_trace_holds_exactly_what_was_sent(run: Run, journal: JournalReader) -> None:
    trace, notes = read_trace(journal, incident(LAST))
    assert notes == []
    loads = [sent for sent in trace.sent if sent.origin is Origin.LOAD]
    passes = [
        (sent, seen)
        for sent, seen in zip(trace.sent, trace.seen, strict=True)
        if sent.origin is not Origin.LOAD
    ]
    assert {(s.index, s.step, s.part) for s in loads} == set(run.loads)
    assert {sent.shape for sent in loads} == {name for name, _ in SPEC.weights}
    for sent in loads:
        assert sent.ids.tolist() == run.loads[sent.index, sent.step, sent.part][0].tolist()
        item = next(i for i in run.plan.items(sent.index) if i.step == sent.step)
        assert (sent.max_new_tokens, sent.temperature_milli, sent.stream, sent.return_logprob) == (
            item.max_new_tokens,
            item.temperature_milli,
            item.stream,
            item.return_logprob,
        )
        assert sent.adapter == ("" if item.adapter is None else "fr")
    assert {sent.adapter for sent in loads} == {"", "fr"}
    assert len(passes) == len(run.passes)
    for (sent, seen), was in zip(passes, run.passes, strict=True):
        assert sent.ids.tolist() == was.sent.ids.tolist()
        assert sent.logprob_start_len == was.sent.start
        assert (sent.namespace == "") == (was.sent.namespace is None)
        assert seen.output_ids.tolist() == was.sent.answer.output_ids.tolist()


def test_prompts_name_whom_they_go_on_from(run: Run, journal: JournalReader) -> None:
    trace = trace_of(journal, incident(LAST))
    followers = 0
    for sent in trace.sent:
        if sent.parent is None:
            assert sent.inherits == 0
            continue
        followers += 1
        parent = np.concatenate([trace.sent[sent.parent].ids, trace.seen[sent.parent].output_ids])
        assert sent.ids[: sent.inherits].tolist() == parent[: sent.inherits].tolist()
        if sent.origin is Origin.LOAD:
            assert sent.inherits == len(parent)
    assert followers > 20
    batched = [n for n in np.bincount([sent.request for sent in trace.sent]) if n > 1]
    assert batched, "some requests of the plan carry several prompts"
    assert order_of(trace).requests


def test_the_case_is_the_question_with_its_logprobs(run: Run, journal: JournalReader) -> None:
    trace = trace_of(journal, incident(LAST))
    case, result = trace.case, run.probes[-1]
    assert (case.number, case.kind, case.stream, case.start) == (
        LAST,
        result.kind,
        result.stream,
        result.resume_boundary,
    )
    assert case.warm.tobytes() == result.warm.tobytes()
    assert case.cold.tobytes() == result.cold.tobytes()
    warm = next(seen for seen in run.passes if seen.number == LAST and seen.sent.what == "warm")
    assert case.ids.tolist() == warm.sent.ids.tolist()
    assert case.victim is not None
    writer = trace.sent[case.victim]
    assert (writer.index, writer.step, writer.part) == (
        result.victim_index,
        result.victim_step,
        result.victim_part,
    )
    assert trace.seen[case.victim].finished_us < case.at_us


def test_every_probe_can_be_the_case(run: Run, journal: JournalReader) -> None:
    answers = controls = 0
    for result in run.probes:
        case = trace_of(journal, incident(result.number)).case
        assert case.warm.tobytes() == result.warm.tobytes()
        answers += case.answer_len > 0
        controls += case.control is not None
        generated = [p for p in run.passes if p.number == case.number and p.sent.what == "continuation"]
        assert (case.answer_len > 0) == bool(generated)
    assert answers
    assert controls


def test_a_bundle_made_from_the_journal_is_the_trace(
    run: Run, journal: JournalReader, tmp_path: Path
) -> None:
    trace, about = read_incident(journal, incident(3))
    write_bundle(tmp_path / "bundle", trace, about)
    again, said = read_bundle(tmp_path / "bundle")
    assert len(again.sent) == len(trace.sent)
    assert again.case.ids.tolist() == trace.case.ids.tolist()
    assert said.spec_digest == spec_digest(about.spec) == SPEC.digest()
    planned = Plan(said.seed, spec_of(said.spec), said.nonce).items(7)
    assert planned == run.plan.items(7)


def test_ids_that_the_plan_no_longer_makes_are_left_out_and_said(run: Run, changed: Path) -> None:
    with sqlite3.connect(changed) as db:
        db.execute("UPDATE prompts SET digest = x'0011223344556677' WHERE origin = 0 AND idx = 2")
    trace, notes = read_trace(JournalReader(changed), incident(LAST))
    assert not [s for s in trace.sent if s.origin is Origin.LOAD and s.index == 2]
    assert len(trace.sent) < len(run.loads) + len(run.passes)
    assert "left out: load 2" in notes[0]


def test_a_plan_of_another_version_is_refused(changed: Path) -> None:
    with sqlite3.connect(changed) as db:
        db.execute("UPDATE sessions SET plan_version = 99")
    with pytest.raises(TraceUnavailable, match="plan version 99"):
        trace_of(JournalReader(changed), incident(1))


def test_an_incident_by_a_beginning_of_its_id(journal: JournalReader) -> None:
    assert journal.incident("0c").alarm.probes == (12,)
    for wrong in ("0", "b", ""):
        with pytest.raises(UnknownIncident, match="soak incidents"):
            journal.incident(wrong)
