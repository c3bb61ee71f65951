"""The record of the server's image reaches the fingerprint, the summary and the metrics, or stops the run."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from soak import config as configs
from soak.config import ConfigError
from soak.export.terminal import Terminal
from soak.run.server_record import ServerRecord
from soak.run.soaking import SoakRun
from soak.sim.config import SimConfig
from soak.sim.server import running


def record(path: Path, version: str, **states: str) -> Path:
    faults = {name.replace("_", "-"): {"state": state} for name, state in states.items()}
    value = {"schema": "soak-runners/1", "sglang": {"version": version}, "faults": faults}
    path.write_text(json.dumps(value))
    return path


def config(url: str, path: Path) -> configs.Config:
    values: dict[str, Any] = {
        "target": {"url": url, "runners_record": str(path)},
        "run": {"duration": "1s", "drain": "1s", "seed": 3},
        "load": {"arrivals": "constant", "rate": 2, "max_context": 200, "max_new_tokens": 4, "roots": 2},
        "metrics": {"port": 0},
    }
    return configs.build(values)


async def soaked(loaded: configs.Config, out: Path) -> tuple[dict[str, Any], str]:
    with Terminal(io.StringIO(), live=False) as terminal:
        run = SoakRun(loaded, out, terminal, command="soak run again")
        soaking = asyncio.create_task(run.run(asyncio.Event()))
        while not run.metrics_port and not soaking.done():  # noqa: ASYNC110 - nobody says when it is served
            await asyncio.sleep(0.01)
        metrics = ""
        if run.metrics_port:
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"http://127.0.0.1:{run.metrics_port}/metrics") as answer,
            ):
                metrics = await answer.text()
        return await soaking, metrics


async def test_it_reaches_fingerprint_and_metrics(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact")) as url:
        path = record(
            tmp_path / "runners.json", "0.5.18", stale_track_rows="fixed", track_overlap="vulnerable"
        )
        summary, metrics = await soaked(config(url, path), tmp_path / "out")
    assert summary["fingerprint"]["runner_fix.stale-track-rows"] == "fixed"
    assert summary["fingerprint"]["runner_fix.track-overlap"] == "vulnerable"
    assert 'soak_server_runner_fix_info{fault="stale-track-rows",state="fixed"} 1.0' in metrics
    assert 'soak_server_runner_fix_info{fault="track-overlap",state="vulnerable"} 1.0' in metrics


async def test_a_record_of_another_version_stops_the_run(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact")) as url:
        path = record(tmp_path / "runners.json", "0.5.16", stale_track_rows="fixed")
        with pytest.raises(ConfigError, match=r"runners_record is of SGLang 0\.5\.16, and the server says"):
            await soaked(config(url, path), tmp_path / "out")


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.runners_record: .*No such file"):
        ServerRecord.of(config("http://127.0.0.1:1", tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="schema None"):
        ServerRecord.of(config("http://127.0.0.1:1", tmp_path / "bad.json"))


def test_no_record_says_nothing() -> None:
    assert ServerRecord.of(configs.build({})).states == {}
