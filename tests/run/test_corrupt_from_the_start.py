"""A server that was corrupt before anybody looked: its controls are spoiled too, and must not excuse it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from soak.detect.ceilings import AMNESIA, ONSET
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.kept import calibrated, until_kept
from tests.run.test_soaking import config, soak


async def until_calibrated(sim: SimConfig, folder: Path) -> dict[str, Any]:
    """The summary of a run that is stopped as soon as resumes from prefill are calibrated."""
    state, stop = folder / "state.sqlite", asyncio.Event()
    async with running(sim) as url:
        loaded = config(
            url,
            run={"duration": "2m", "state": state},
            load={"shapes": {"shared-prefix": 1}},
            probe={"rate": 50, "concurrency": 3, "amnesia_share": 1.0},
            detect={"p0_max": 0.5, "require_coverage": (), "min_valid_probes": 5},
        )
        task = asyncio.create_task(soak(loaded, folder, stop))
        await until_kept(task, state, lambda held: calibrated(held, "prefill"))
        stop.set()
        summary, _ = await task
    return summary


@pytest.mark.parametrize("fault", ["state-not-restored", "middle-truncated"])
async def test_calibrated_on_spoiled_controls_and_found_all_the_same(fault: str, tmp_path: Path) -> None:
    """Both hit every resume. Evidence learns that as normal, and what never learns says otherwise."""
    summary = await until_calibrated(SimConfig(numerics="production", faults=(fault,)), tmp_path)
    detector = summary["detector"]
    (kind,) = (kind for kind in detector["kinds"] if kind["kind"] == "prefill")
    assert kind["mode"] == "tolerance", kind
    assert kind["control_floor"] > 30 * kind["cold_floor"]
    assert detector["log_sum"] < detector["log_bar"]  # the evidence by itself would have let it pass
    assert summary["verdict"] == "CORRUPT", summary["reasons"]
    channels = {alarm["channel"]: alarm["verdict"] for alarm in detector["alarms"]}
    assert {AMNESIA, ONSET} & channels.keys()
    assert channels["control-floor"] == "SUSPECT"


async def test_a_healthy_server_calibrated_alike_raises_none_of_them(tmp_path: Path) -> None:
    """The check above can fail: the same run without the fault."""
    summary = await until_calibrated(SimConfig(numerics="production"), tmp_path)
    assert not summary["detector"]["alarms"]
    assert summary["verdict"] == "CLEAN", summary["reasons"]
