"""Answers that changed hands, and what load itself had paused meanwhile: all come back in a replay."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from soak.drive.deed import LOAD, PAUSE
from soak.incident.about import About
from soak.incident.bundle import write_bundle
from soak.incident.journal_reader import JournalReader
from soak.incident.rebuild import read_incident
from soak.incident.trace import Origin, Trace
from soak.oracle.probe import ProbeOutcome
from soak.plan.shapes import canary, pause_queue, strict_json
from tests.incident.circle import config, replay, simulator, soaked

FAULT = "identity-swap"
SWAPPING: dict[str, Any] = {
    "shapes": {canary.NAME: 4, pause_queue.NAME: 1},
    "rate": 6,
    "burst": 4,
    "min_prompt": 32,
    "max_context": 200,
    "decode_tokens": 40,
    "max_new_tokens": 6,
}


async def swapped(
    url: str, run: Path, load: dict[str, Any], *, before: str, disruptive: bool = False
) -> tuple[Trace, About]:
    """The incident of a soak that was found as soon as an answer had changed hands."""
    soaking = config(
        url,
        target={"url": url, "disruptive": disruptive},
        load=load,
        detect={"max_abs_d": None},
        probe={"rate": 1},
        journal={"before": before, "after": "200ms", "window": "30s"},
    )
    name = await soaked(soaking, run)
    with closing(JournalReader(run / "journal.sqlite")) as reader:
        return read_incident(reader, name)


async def test_a_canary_with_anothers_answer_is_met_again_between_the_pauses_of_its_load(
    tmp_path: Path,
) -> None:
    run, bundle, lenient = tmp_path / "run", tmp_path / "bundle", tmp_path / "lenient.yaml"
    lenient.write_text("target: {disruptive: true}\n")
    async with simulator(FAULT, context_len=400) as url:
        trace, about = await swapped(url, run, SWAPPING, before="3s", disruptive=True)
        case = trace.case
        assert (case.shape, case.outcome) == (canary.NAME, ProbeOutcome.BROKEN_INVARIANT)
        place = trace.sent[case.victim or 0]
        assert f"load request {place.index}, step {place.step}, part {place.part}:" in case.detail
        assert trace.acted
        assert {(acted.name, acted.target) for acted in trace.acted} == {(PAUSE, LOAD)}
        assert {acted.settings["mode"] for acted in trace.acted} <= {"in_place", "retract"}
        write_bundle(bundle, trace, about)
        there = ("--bundle", bundle, "--target", url, "--speed", "max", "--repeat", "1", "--json")
        code, said = await replay(lenient, *there, "--quiet")
        assert code == 1, said
        again = json.loads(said)["replays"]
        assert "was answered with the answer of canary" in again[0]["words"]
        assert [len(one["done_again"]) for one in again] == [len(trace.acted)]
    async with simulator(FAULT, planted=False, context_len=400) as url:
        there = ("--bundle", bundle, "--target", url, "--speed", "max", "--repeat", "1", "--anyway")
        code, said = await replay(lenient, *there)
        assert code == 0, said
        assert "no broken_invariant this time" in said
        assert "done again: " in said


BOUND: dict[str, Any] = {**SWAPPING, "shapes": {strict_json.NAME: 1}, "rate": 2, "max_context": 300}


async def test_a_schema_with_anothers_constant_is_met_again_by_the_schemas_of_then(tmp_path: Path) -> None:
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    async with simulator(FAULT, context_len=400, tokenizer=True) as url:
        trace, about = await swapped(url, run, BOUND, before="1s")
        case = trace.case
        assert (case.shape, case.outcome) == (strict_json.NAME, ProbeOutcome.BROKEN_INVARIANT)
        own = trace.sent[case.victim or 0]
        assert f"{own.code} is its own" in case.detail
        load = [sent.code for sent in trace.sent if sent.origin is Origin.LOAD]
        assert all(load)
        assert len(set(load)) == len(load)
        write_bundle(bundle, trace, about)
        there = ("--bundle", bundle, "--target", url, "--speed", "max", "--repeat", "1", "--json")
        code, said = await replay(*there, "--quiet")
        assert code == 1, said
        assert "of another request's schema" in json.loads(said)["replays"][0]["words"]
    async with simulator(FAULT, planted=False, context_len=400, tokenizer=True) as url:
        there = ("--bundle", bundle, "--target", url, "--speed", "max", "--repeat", "1", "--anyway")
        code, said = await replay(*there)
        assert code == 0, said
        assert "no broken_invariant this time" in said
