"""Experiments on real servers: what is done to them is done, what must hold holds, and no key is left."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from soak.chaos.running import ExperimentRun
from soak.chaos.spec import Experiment
from soak.export.terminal import Terminal

from .conftest import API_KEY, LLAMA_ARGS
from .server import Server, start

KEY_ENV = "SOAK_CHAOS_TEST_KEY"
SOAK: dict[str, Any] = {
    "load": {
        "arrivals": "constant",
        "rate": 0.8,
        "max_context": 900,
        "max_new_tokens": 8,
        "decode_tokens": 24,
        "burst": 2,
        "shapes": {"shared-prefix": 2, "decode-seeded": 1},
    },
    # few enough that the server is idle now and then: a flush waits for that
    "probe": {"rate": 1, "concurrency": 1, "tail": 24, "timeout": "60s"},
    "budget": {"probe_share": None, "pool_share_per_minute": None},
    "detect": {"p0_max": 0.2, "max_abs_d": 1.0e-4},
    "metrics": {"port": None},
    "journal": {"enabled": True},
}


def experiment(url: str, actions: list[dict[str, Any]], afterwards: list[str], **target: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "experiment": "real",
            "targets": {
                "server": {
                    "url": url,
                    "disruptive": True,
                    "ready_within": "5m",
                    "api_key_env": KEY_ENV,
                    **target,
                }
            },
            "soak": SOAK,
            "actions": actions,
            "hypothesis": {"error_share": 0.05, "verdict": "NOT-CORRUPT"},
            "stop_when": {"error_share": None},
            "cool_down": "3s",
            "witnesses": 3,
            "witness_tokens": 300,
            "afterwards": afterwards,
        }
    )


async def conduct(planned: Experiment, folder: Path) -> dict[str, Any]:
    with Terminal(io.StringIO(), live=False) as screen:
        ran = ExperimentRun(planned, folder / "out", folder / "ledger", screen)
        async with asyncio.timeout(420):
            report = await ran.run(asyncio.Event())
    assert files_with_the_key(folder) == []
    return report


def files_with_the_key(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if API_KEY.encode() in path.read_bytes()]


def held(report: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["held"] for one in report["afterwards"]}


async def test_flush_pauses_reload_and_aborts(
    llama: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mode of pause; retracted and aborted requests score like cold; the weights are loaded again."""
    monkeypatch.setenv(KEY_ENV, API_KEY)
    retraction = {"do": "retraction", "for": "300ms", "prompts": 3, "tokens": 120, "new_tokens": 96}
    actions: list[dict[str, Any]] = [
        {"do": "flush", "at": "10ms", "within": "20s"},
        *(
            {"do": "pause", "mode": mode, "at": f"{at}ms", "for": "300ms"}
            for at, mode in ((20, "abort"), (30, "retract"), (40, "in_place"))
        ),
        {**retraction, "at": "50ms"},
        # when the pauses are over: what is held up by one would be answered before it is taken back
        {"do": "abort-storm", "at": "7s", "prompts": 6, "tokens": 700, "after": [5, 400]},
        {"do": "reload", "at": "9s", "within": "60s"},
    ]
    names = ["serves", "retracted-like-cold", "aborted-not-poisoned", "old-prefixes-true"]
    report = await conduct(experiment(llama.url, actions, names), tmp_path)
    assert [(one["name"], one["outcome"]) for one in report["done"]] == [
        (action["do"], "done") for action in actions
    ], report["done"]
    assert held(report) == dict.fromkeys(names, True), report["afterwards"]
    assert report["verdict"] not in ("SUSPECT", "CORRUPT")
    assert report["undone"] == []


async def test_the_network(llama: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault of the proxy in turn; the server comes through, and remembers rightly."""
    monkeypatch.setenv(KEY_ENV, API_KEY)
    actions: list[dict[str, Any]] = [
        {"do": "latency", "at": "10ms", "for": "2s", "delay": 20, "jitter": 60},
        {"do": "slow-reader", "at": "2s", "for": "3s", "bytes_per_second": 2000},
        {"do": "truncate", "at": "5s", "for": "2s", "share": 0.5, "after_bytes": 400},
        {"do": "connection-loss", "at": "7s", "for": "1s"},
        {"do": "half-open", "at": "8s", "for": "2s", "share": 0.5},
    ]
    names = ["serves", "old-prefixes-true"]
    report = await conduct(experiment(llama.url, actions, names, disruptive=False), tmp_path)
    assert [one["outcome"] for one in report["done"]] == ["done"] * len(actions), report["done"]
    assert held(report) == dict.fromkeys(names, True), report["afterwards"]
    assert report["verdict"] not in ("SUSPECT", "CORRUPT")


class Restarts:
    """A server that an experiment takes down and starts by commands, which ask this process to do it."""

    def __init__(self) -> None:
        self.server = start("llama", extra_args=LLAMA_ARGS, api_key=API_KEY)

    def _again(self) -> None:
        port = int(self.server.url.rpartition(":")[2])
        self.server = start("llama", extra_args=LLAMA_ARGS, api_key=API_KEY, port=port)

    @asynccontextmanager
    async def commands(self) -> AsyncIterator[dict[str, list[str]]]:
        async def kill(_: web.Request) -> web.Response:
            await asyncio.to_thread(self.server.stop)
            return web.Response()

        async def begin(_: web.Request) -> web.Response:
            await asyncio.to_thread(self._again)
            return web.Response()

        app = web.Application()
        app.router.add_get("/kill", kill)
        app.router.add_get("/start", begin)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield {name: [sys.executable, "-c", ask, f"{base}/{name}"] for name in ("kill", "start")}
        finally:
            await runner.cleanup()


async def test_kill_and_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards every old prefix is cold, none is wrong, and the run went on where it was."""
    monkeypatch.setenv(KEY_ENV, API_KEY)
    there = await asyncio.to_thread(Restarts)
    try:
        async with there.commands() as commands:
            names = ["serves", "old-prefixes-cold", "old-prefixes-true"]
            actions = [{"do": "kill", "at": "1s", "for": "500ms"}]
            planned = experiment(there.server.url, actions, names, **commands)
            report = await conduct(planned, tmp_path)
    finally:
        await asyncio.to_thread(there.server.stop)
    assert [one["outcome"] for one in report["done"]] == ["done"], report["done"]
    assert held(report) == dict.fromkeys(names, True), report["afterwards"]
    assert all(seen["cached"] for seen in report["before"]), "they had been warm"
    assert report["exit_code"] == 0, report
