"""Calibration beforehand against the simulator, and what a run makes of it."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from soak import config as configs
from soak.detect.verdict import Verdict
from soak.export.learnt import Learnt, learnt_words
from soak.export.terminal import Terminal
from soak.oracle.probe import ResumeKind
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.run import calibrating
from soak.run.calibrating import CalibrationRun, for_calibration, kinds_planted
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.kept import controls, until_kept
from tests.run.test_soaking import config, nothing_left, soak

PRODUCTION = SimConfig(numerics="production")


def wanted(url: str, state: Path, **sections: dict[str, Any]) -> configs.Config:
    values: dict[str, dict[str, Any]] = {
        "run": {"state": state, "duration": "8s"},
        "detect": {"p0_max": 0.5, "min_valid_probes": 5, "require_coverage": ()},
        "load": {"shapes": {"shared-prefix": 1, "decode-seeded": 1}},
        "probe": {"rate": 50},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return config(url, **values)


async def calibrate(
    loaded: configs.Config, stop: asyncio.Event | None = None, within_s: float | None = 60.0
) -> tuple[Learnt, str]:
    screen = io.StringIO()
    with Terminal(screen, live=False, plain_every_s=0.0) as terminal:
        learnt = await CalibrationRun(loaded, terminal, within_s=within_s).run(stop or asyncio.Event())
    return learnt, screen.getvalue()


async def test_a_run_starts_calibrated_by_what_was_learned_before(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    async with running(PRODUCTION) as url:
        learnt, said = await calibrate(wanted(url, state))
        await nothing_left(url)
        summary, told = await soak(wanted(url, state), tmp_path)
    assert learnt.complete
    assert {kind.kind for kind in learnt.ready} == {"prefill", "decode"}
    assert set(learnt.beyond) == {"host", "retracted"}
    assert not learnt.alarms
    assert "calibrating alone" in said
    assert "calibrating under load" in said
    words = learnt_words(learnt, str(state))
    assert "resumes from" in words
    assert f"fingerprint {learnt.fingerprint}" in words
    assert "host: no control can copy such a resume" in words
    assert CALIBRATING not in told
    assert summary["verdict"] == "CLEAN", summary["reasons"]
    known = {kind["kind"]: kind for kind in summary["detector"]["kinds"]}
    for kind in learnt.ready:
        assert known[kind.kind]["threshold"] == kind.threshold
        assert known[kind.kind]["controls"] >= kind.controls


CALIBRATING = Verdict.CALIBRATING.value


async def test_a_stop_keeps_what_there_is_and_the_next_goes_on(tmp_path: Path) -> None:
    state, stop = tmp_path / "state.sqlite", asyncio.Event()
    async with running(PRODUCTION) as url:
        loaded = wanted(url, state, detect={"p0_max": 0.01})
        task = asyncio.create_task(calibrate(loaded, stop))
        await until_kept(task, state, lambda held: controls(held) >= 3)
        stop.set()
        first, _ = await asyncio.wait_for(task, 20)
        await nothing_left(url)
        again, _ = await calibrate(loaded, within_s=4.0)
    assert first.interrupted
    assert not again.interrupted
    assert not first.complete
    made = {kind.kind: kind.controls for kind in first.report.kinds}
    assert sum(made.values()) >= 3
    for kind in again.report.kinds:
        assert kind.controls >= made.get(kind.kind, 0)
    assert sum(kind.controls for kind in again.report.kinds) > sum(made.values())
    assert "INTERRUPTED: what was learned so far is kept" in learnt_words(first, str(state))
    assert "more controls are wanted" in again.missing["prefill"]


@pytest.mark.parametrize("fault", ["state-not-restored", "middle-truncated"])
async def test_a_corrupt_server_teaches_nothing(fault: str, tmp_path: Path) -> None:
    """Every control is as corrupt as every probe, so it would pass for normal."""
    state = tmp_path / "state.sqlite"
    async with running(SimConfig(numerics="production", faults=(fault,))) as url:
        learnt, _ = await calibrate(wanted(url, state, detect={"p0_max": 0.01}))
        summary, told = await soak(wanted(url, state, run={"duration": "4s"}), tmp_path)
    assert learnt.alarms
    assert not learnt.ready
    assert "must not teach what is normal" in learnt_words(learnt, str(state))
    assert "still alarmed" in told
    assert summary["verdict"] in ("SUSPECT", "CORRUPT")
    assert summary["exit_code"] == 1


async def test_a_kind_whose_controls_cannot_be_made_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of decode are kept every 128 tokens, and nothing generates so many."""
    monkeypatch.setattr(calibrating, "_PATIENCE", 4)
    sim = SimConfig(numerics="production", radix_strategy="extra_buffer")
    async with running(sim) as url:
        loaded = wanted(url, tmp_path / "state.sqlite", load={"shapes": {"decode-seeded": 1}})
        learnt, _ = await calibrate(loaded)
    assert not learnt.complete
    assert "4 controls in a row could not be made" in learnt.missing["decode"]
    assert "prefill" in learnt.beyond
    assert "none of load.shapes" in learnt.beyond["prefill"]


async def test_a_lost_server_ends_it_with_what_there_is(tmp_path: Path) -> None:
    ready, gone = asyncio.Event(), asyncio.Event()
    address: list[str] = []

    async def serve() -> None:
        async with running(PRODUCTION) as url:
            address.append(url)
            ready.set()
            await gone.wait()

    server = asyncio.create_task(serve())
    await ready.wait()
    loaded = wanted(address[0], tmp_path / "state.sqlite", detect={"p0_max": 0.01}, stop={"lost_after": "2s"})
    task = asyncio.create_task(calibrate(loaded))
    await until_kept(task, tmp_path / "state.sqlite", lambda held: controls(held) >= 1)
    gone.set()
    await server
    learnt, _ = await asyncio.wait_for(task, 30)
    assert "has answered" in learnt.lost
    assert "The server was lost" in learnt_words(learnt, "s")


def test_without_a_state_file_there_is_nothing_to_keep_it_in() -> None:
    with pytest.raises(configs.ConfigError, match=r"run\.state: .*--state FILE"):
        for_calibration(configs.build({}))


def test_the_load_is_little_and_hurts_nobody(tmp_path: Path) -> None:
    given = {
        "target": {"disruptive": True},
        "run": {"state": tmp_path / "s"},
        "load": {"rate": 50, "shapes": {"pressure": 1, "shared-prefix": 2}},
        "budget": {"tokens_per_second": 700, "in_flight": 40},
    }
    little = for_calibration(configs.build(given))
    assert little.load.rate == calibrating.LITTLE_RATE
    assert little.load.shapes == {"shared-prefix": 2}
    assert (little.budget.tokens_per_second, little.budget.in_flight) == (700, 40)
    assert little.budget.probe_share is None
    assert little.pool_share_per_minute == 0.5
    given["load"] = {"shapes": {"pressure": 1}}
    with pytest.raises(configs.ConfigError, match=r"load\.shapes: .*pressure"):
        for_calibration(configs.build(given))


@pytest.mark.parametrize(
    ("shapes", "kinds"),
    [
        ({"shared-prefix": 1}, {ResumeKind.PREFILL}),
        ({"decode-seeded": 1}, {ResumeKind.DECODE}),
        ({"shared-prefix": 9, "decode-seeded": 1}, {ResumeKind.PREFILL, ResumeKind.DECODE}),
    ],
)
def test_kinds_are_those_that_the_load_plants(shapes: dict[str, int], kinds: set[ResumeKind]) -> None:
    spec = configs.build({"load": {"shapes": shapes}}).resolve(Geometry())
    assert kinds_planted(Plan(1, spec)) == kinds
