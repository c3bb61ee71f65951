"""A fault that spoils the cold pass as well: ordinary probes agree with it, invariance probes do not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from soak import config as configs
from soak.incident.bundle import read_bundle
from soak.incident.journal_reader import JournalReader
from soak.oracle.invariance import SHAPE
from soak.oracle.probe import PAIR_WORDS, ResumeKind
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.incident.circle import command, config, replay, simulator, soaked
from tests.run.kept import calibrated, until_kept
from tests.run.test_soaking import soak

FAULT = "chunk-boundary-slip"
# every prompt is longer than two chunks of 64 tokens and shares nothing with another: the cache holds what
# a cold pass computes, wrong as it is
LONG: dict[str, Any] = {
    "shapes": {"decode-seeded": 1},
    "rate": 1,
    "min_prompt": 140,
    "max_context": 480,
    "decode_tokens": 16,
}


def asking(url: str, share: float, **sections: dict[str, Any]) -> configs.Config:
    probe = {"rate": 30, "concurrency": 1, "invariance_share": share}
    return config(url, **{"load": LONG, "probe": probe, **sections})


def ordinary_figures(out: Path) -> list[float]:
    """max |d| of every ordinary probe that the run made."""
    reader = JournalReader(out / "journal.sqlite")
    try:
        made = [reader.probe(1, number) for number in range(1, 400)]
    finally:
        reader.close()
    return [
        one.facts["divergence"]["max_abs"]
        for one in made
        if one is not None and one.outcome == "valid" and one.facts["shape"] != SHAPE
    ]


async def test_invariance_probes_alone_find_it_and_a_replay_asks_both_ways_again(tmp_path: Path) -> None:
    run, bundle = tmp_path / "run", tmp_path / "bundle"
    async with simulator(FAULT, chunked_prefill_size=64, context_len=600) as url:
        name = await soaked(asking(url, 0.35), run)
        (alarm,) = json.loads((run / "summary.json").read_text())["detector"]["alarms"]
        shape, _, kind = alarm["stream"].split("/")
        assert shape == SHAPE
        assert kind in (ResumeKind.IN_STEPS, ResumeKind.SHIFTED)  # a batch, or another time, is as wrong
        assert PAIR_WORDS[ResumeKind(kind)] in alarm["evidence"]
        ordinary = ordinary_figures(run)
        assert ordinary
        assert set(ordinary) == {0.0}
        code, said = await command("-m", "soak", "incidents", "export", name, bundle, "--out", run)
        assert code == 0, said
        trace, _ = read_bundle(bundle)
        assert trace.case.steps
        assert trace.case.victim is None
        code, said = await command("-m", "soak", "incidents", "show", name, "--out", run)
        assert code == 0, said
        assert PAIR_WORDS[ResumeKind(kind)] in " ".join(said.split())
        there = ("--bundle", bundle, "--target", url, "--window", "4", "--speed", "max")
        code, said = await replay(*there, "--repeat", "1")
        assert code == 1, said
        code, said = await replay(*there, "--emit", tmp_path / "repro.py")
        assert code == 2, said
        assert "both can be wrong" in said
    async with simulator(FAULT, planted=False, chunked_prefill_size=64, context_len=600) as url:
        there = ("--bundle", bundle, "--target", url, "--window", "4", "--speed", "max")
        code, said = await replay(*there, "--repeat", "1", "--anyway")
        assert code == 0, said


@pytest.mark.slow
async def test_a_healthy_server_in_production_noise_raises_nothing(tmp_path: Path) -> None:
    """Until the pairs are judged by evidence, those that waited among them, not by ceilings alone."""
    state, stop = tmp_path / "state.sqlite", asyncio.Event()
    sim = SimConfig(numerics="production", chunked_prefill_size=64, context_len=600, max_mamba_slots=400)
    async with running(sim) as url:
        loaded = asking(
            url,
            0.7,
            run={"duration": "15m", "state": state, "seed": 3},
            detect={"p0_max": 0.5, "min_valid_probes": 20, "max_abs_d": None},
        )
        task = asyncio.create_task(soak(loaded, tmp_path, stop))
        pairs = (ResumeKind.IN_STEPS, ResumeKind.SHIFTED, ResumeKind.IN_A_BATCH)
        await until_kept(
            task, state, lambda held: all(calibrated(held, pair.value) for pair in pairs), within_s=850
        )
        stop.set()
        summary, _ = await task
    assert not summary["detector"]["alarms"], summary["reasons"]
    judged = {kind["kind"] for kind in summary["detector"]["kinds"] if kind["mode"] == "tolerance"}
    assert judged >= set(pairs)
