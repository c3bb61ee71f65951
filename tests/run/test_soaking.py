"""Whole runs against the simulator: verdicts, exit codes, files, and what is left on the server."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from soak import config as configs
from soak.export.exposition import MetricsUnavailable
from soak.export.terminal import Terminal
from soak.run.connecting import Interrupted
from soak.run.exit_code import ExitCode
from soak.run.soaking import SoakRun
from soak.sglang.preflight import TargetUnusable
from soak.sim.config import SimConfig
from soak.sim.server import running

EXACT = SimConfig(numerics="exact")


def config(url: str, **sections: dict[str, Any]) -> configs.Config:
    values: dict[str, Any] = {
        "target": {"url": url},
        "run": {"duration": "12s", "drain": "5s", "seed": 3},
        "load": {
            "arrivals": "constant",
            "rate": 3,
            "max_context": 420,
            "min_prompt": 48,
            "max_new_tokens": 6,
            "decode_tokens": 24,
            "burst": 3,
            "roots": 4,
        },
        "probe": {"rate": 20, "concurrency": 2, "tail": 24, "continuation": 24},
        "budget": {"probe_share": None, "pool_share_per_minute": None},
        "detect": {"p0_max": 0.2, "min_valid_probes": 10},
        "metrics": {"port": None},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return configs.build(values)


async def soak(
    loaded: configs.Config, out: Path, stop: asyncio.Event | None = None
) -> tuple[dict[str, Any], str]:
    screen = io.StringIO()
    with Terminal(screen, live=False) as terminal:
        summary = await SoakRun(loaded, out, terminal, command="soak run again").run(stop or asyncio.Event())
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    return summary, screen.getvalue()


async def nothing_left(url: str) -> None:
    """The server is idle, or is once it has handled the aborts that reached it: a busy one takes a moment."""
    await until(url, lambda n: n == 0, within_s=10)


async def post(url: str, body: bytes = b"") -> str:
    async with aiohttp.ClientSession() as session:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            return await answer.text()


async def in_flight(url: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(("sglang:num_running_reqs", "sglang:num_queue_reqs"))
    )


async def until(url: str, holds: Callable[[float], bool], within_s: float = 20.0) -> None:
    """Wait until the server has so many requests of anybody's."""
    async with asyncio.timeout(within_s):
        while not holds(await in_flight(url)):  # noqa: ASYNC110 - another process would be asked as well
            await asyncio.sleep(0.05)


async def test_a_healthy_server_is_clean(tmp_path: Path) -> None:
    async with running(EXACT) as url:
        summary, _ = await soak(config(url, run={"duration": "30s"}, detect={"p0_max": 0.5}), tmp_path)
    assert summary["verdict"] == "CLEAN", summary["reasons"]
    assert summary["exit_code"] == ExitCode.CLEAN
    assert summary["simulator"] is True
    assert summary["load"]["asked"] == summary["load"]["delivered"] > 60
    assert set(summary["divergence"]) == {"shared-prefix", "long-context", "chunked-burst", "decode-seeded"}
    assert all(d["probe"]["max_abs"]["max"] == 0.0 for d in summary["divergence"].values())
    assert {c["state"] for c in summary["coverage"]} <= {"presumed", "confirmed"}
    assert json.loads((tmp_path / "run.json").read_text())["spec_digest"] == summary["spec_digest"]


@pytest.mark.parametrize("fault", ["state-not-restored", "middle-truncated", "nan-logprob"])
async def test_faults_that_are_there_from_the_first_minute_are_found(fault: str, tmp_path: Path) -> None:
    async with running(SimConfig(numerics="production", faults=(fault,))) as url:
        summary, said = await soak(config(url), tmp_path)
    assert summary["verdict"] == "CORRUPT", summary["reasons"]
    assert summary["exit_code"] == ExitCode.CORRUPT
    assert "CORRUPT" in said


async def test_an_interruption_aborts_writes_and_leaves_nothing(tmp_path: Path) -> None:
    stop = asyncio.Event()
    async with running(EXACT) as url:
        loaded = config(url, run={"duration": "60s"}, load={"decode_tokens": 400, "rate": 5})
        task = asyncio.create_task(soak(loaded, tmp_path, stop))
        await until(url, lambda n: n >= 2)
        stop.set()
        begun = time.monotonic()
        summary, _ = await task
        assert time.monotonic() - begun < 4
        await nothing_left(url)
    assert summary["exit_code"] == ExitCode.INTERRUPTED
    assert summary["interrupted"] is True


async def test_a_busy_server_is_refused_unless_shared(tmp_path: Path) -> None:
    async with running(EXACT) as url:
        body = json.dumps({"input_ids": [20] * 50, "sampling_params": {"max_new_tokens": 3000}}).encode()
        other = asyncio.create_task(post(f"{url}/generate", body))
        await until(url, lambda n: n > 0)
        with pytest.raises(TargetUnusable, match=r"target\.shared: true"):
            await soak(config(url), tmp_path)
        summary, _ = await soak(
            config(url, target={"url": url, "shared": True}, run={"duration": "2s"}), tmp_path
        )
        assert summary["load"]["asked"]
        await post(f"{url}/abort_request", b'{"rid": "", "abort_all": true}')
        await other


async def test_a_lost_target_ends_the_run_with_its_own_code(tmp_path: Path) -> None:
    ready, gone = asyncio.Event(), asyncio.Event()
    address: list[str] = []

    async def serve() -> None:
        async with running(EXACT) as url:
            address.append(url)
            ready.set()
            await gone.wait()

    server = asyncio.create_task(serve())
    await ready.wait()
    loaded = config(address[0], run={"duration": "60s"}, stop={"lost_after": "2s"})
    task = asyncio.create_task(soak(loaded, tmp_path))
    await asyncio.sleep(3)
    gone.set()
    await server
    summary, _ = await asyncio.wait_for(task, 30)
    assert summary["exit_code"] == ExitCode.TARGET
    assert any("target lost" in reason for reason in summary["reasons"])


async def test_load_that_is_not_delivered_is_said(tmp_path: Path) -> None:
    async with running(EXACT) as url:
        loaded = config(url, run={"duration": "4s"}, budget={"tokens_per_second": 50})
        summary, _ = await soak(loaded, tmp_path)
    assert summary["exit_code"] == ExitCode.LOAD
    assert summary["load"]["undelivered"]["token-budget"] > 0
    assert any("load not delivered" in reason for reason in summary["reasons"])


async def test_a_run_that_reached_nothing_is_not_clean(tmp_path: Path) -> None:
    async with running(EXACT) as url:
        summary, _ = await soak(config(url, run={"duration": "1s"}), tmp_path)
    assert summary["verdict"] in ("VACUOUS", "CALIBRATING")
    assert summary["exit_code"] == ExitCode.INCONCLUSIVE


async def test_the_same_seed_and_nonce_send_the_same_ids(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "other"):
        async with running(EXACT) as url:
            await soak(config(url, run={"duration": "1s", "nonce": 5}), tmp_path / name)
        digests.append(json.loads((tmp_path / name / "run.json").read_text())["run_id"])
    assert digests[0] == digests[1]


async def test_a_conjunction_that_does_not_exist_is_refused_before_anything(tmp_path: Path) -> None:
    loaded = config("http://127.0.0.1:1", detect={"require_coverage": ["teapot"]})
    with pytest.raises(configs.ConfigError, match=r"detect\.require_coverage: .*teapot.*prefix-hit"):
        await soak(loaded, tmp_path)
    assert not (tmp_path / "run.json").exists()


async def test_a_required_conjunction_whose_shape_is_left_out_is_refused(tmp_path: Path) -> None:
    loaded = config(
        "http://127.0.0.1:1",
        load={"shapes": {"shared-prefix": 1}},
        detect={"require_coverage": ["decode-written-resume"]},
    )
    with pytest.raises(configs.ConfigError, match=r"decode-written-resume is reached by .*decode-seeded"):
        await soak(loaded, tmp_path)


async def test_an_earlier_summary_does_not_outlive_the_start_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"verdict": "CLEAN"}')
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with taken, running(EXACT) as url:
        with pytest.raises(MetricsUnavailable):
            await soak(config(url, metrics={"port": port}), tmp_path)
    assert not (tmp_path / "summary.json").exists()


async def test_a_stop_during_the_preflight_takes_its_requests_back(tmp_path: Path) -> None:
    stop, asked = asyncio.Event(), asyncio.Event()
    aborted: list[str] = []

    async def info(_: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "version": "0.5.18", "internal_states": [{}]})

    async def never(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.sleep(60)
        return web.Response()

    async def abort(request: web.Request) -> web.Response:
        aborted.append((await request.json())["rid"])
        return web.Response()

    app = web.Application()
    app.router.add_get("/server_info", info)
    app.router.add_post("/generate", never)
    app.router.add_post("/abort_request", abort)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    task = asyncio.create_task(soak(config(f"http://127.0.0.1:{runner.addresses[0][1]}"), tmp_path, stop))
    await asked.wait()
    stop.set()
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        await task
    assert time.monotonic() - begun < 2
    await runner.cleanup()
    (rid,) = aborted
    assert rid.startswith("soak-preflight-")
    assert len(rid) > len("soak-preflight-")
