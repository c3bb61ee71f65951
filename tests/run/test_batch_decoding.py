"""A fault of what is generated in a batch: every cache is right, and one kind of probe alone sees it."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

from soak.incident.bundle import write_bundle
from soak.incident.candidates import candidates
from soak.incident.history import history_of
from soak.incident.journal_reader import JournalReader
from soak.incident.rebuild import read_incident
from soak.oracle.invariance import SHAPE
from soak.oracle.probe import PAIR_WORDS, ResumeKind
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.incident.circle import replay, simulator, soaked
from tests.run.kept import calibrated, until_kept
from tests.run.test_invariance import LONG, asking, ordinary_figures
from tests.run.test_soaking import soak

FAULT = "late-output-rows"
SHORT = {**LONG, "min_prompt": 60, "max_context": 200}


async def test_it_alone_finds_what_a_wide_decode_does_and_a_replay_generates_again(tmp_path: Path) -> None:
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    async with simulator(FAULT, context_len=600) as url:
        name = await soaked(asking(url, 0.8, load=SHORT), run)
        for alarm in json.loads((run / "summary.json").read_text())["detector"]["alarms"]:
            shape, _, kind = alarm["stream"].split("/")
            assert (shape, kind) == (SHAPE, ResumeKind.DECODE_BATCH.value)
            assert PAIR_WORDS[ResumeKind.DECODE_BATCH] in alarm["evidence"]
        ordinary = ordinary_figures(run)
        assert ordinary
        assert set(ordinary) == {0.0}
        with closing(JournalReader(run / "journal.sqlite")) as reader:
            trace, about = read_incident(reader, name)
        assert trace.case.beside.count(0) == 1
        assert len(trace.case.beside) > 2  # the first two rows of a replay are right
        assert FAULT in {one.fault.name for one in candidates(trace, history_of(trace), about)}
        write_bundle(bundle, trace, about)
        there = ("--bundle", bundle, "--target", url, "--window", "4", "--speed", "max", "--repeat", "1")
        code, said = await replay(*there)
        assert code == 1, said
    async with simulator(FAULT, planted=False, context_len=600) as url:
        there = ("--bundle", bundle, "--target", url, "--window", "4", "--speed", "max", "--repeat", "1")
        code, said = await replay(*there, "--anyway")
        assert code == 0, said


@pytest.mark.slow
async def test_a_healthy_server_in_production_noise_raises_nothing(tmp_path: Path) -> None:
    """Until the pair is judged by evidence: its own controls, generated alone, say how noisy it is."""
    state, stop = tmp_path / "state.sqlite", asyncio.Event()
    sim = SimConfig(numerics="production", context_len=600, max_mamba_slots=400)
    async with running(sim) as url:
        loaded = asking(
            url,
            0.9,
            run={"duration": "15m", "state": state, "seed": 3},
            detect={"p0_max": 0.5, "min_valid_probes": 20, "max_abs_d": None},
        )
        task = asyncio.create_task(soak(loaded, tmp_path, stop))
        await until_kept(
            task, state, lambda held: calibrated(held, ResumeKind.DECODE_BATCH.value), within_s=850
        )
        stop.set()
        summary, _ = await task
    assert not summary["detector"]["alarms"], summary["reasons"]
