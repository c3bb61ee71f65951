"""The leash at work: stop conditions, blast radius, commands, a stop by hand. On a server without a model."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from soak.chaos.commands import run_command
from soak.chaos.running import ExperimentRun
from soak.chaos.spec import Experiment
from soak.export.terminal import Terminal
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import TargetUnusable, server_now
from tests.sglang.misbehaving import replies, serving
from tests.survival.server import Server, load_only

from .running import LIGHT, conduct, experiment

LOADED = {**LIGHT, "load": {**LIGHT["load"], "rate": 20}}


def pauses(server: Server) -> list[str]:
    return [path for path, _ in server.seen.controls if "generation" in path]


async def test_a_stop_condition_ends_it_and_undoes_what_is_in_force(tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        planned = experiment(
            url,
            [{"do": "pause", "mode": "in_place", "at": "10ms", "for": "10m"}, {"do": "flush", "at": "5m"}],
            soak=LOADED,
            stop_when={"error_share": 0.5, "answers": 10},
        )
        server.spoil = load_only(lambda _wanted, _number: replies(500, b"{}"))
        report = await conduct(planned, tmp_path)
    assert report["stopped"].endswith("of the last 10 answers were errors")
    assert report["exit_code"] == 5 or report["exit_code"] == 3
    assert [one["outcome"] for one in report["done"]] == ["undone", "not begun"]
    assert pauses(server)[:2] == ["/pause_generation", "/continue_generation"]
    assert all(one["undone"] for one in report["undone"])


async def test_a_stop_by_hand_undoes_too(tmp_path: Path) -> None:
    server, stop = Server(), asyncio.Event()
    async with server.listening() as url:
        planned = experiment(url, [{"do": "pause", "mode": "abort", "at": "10ms", "for": "10m"}])
        with Terminal(io.StringIO(), live=False) as screen:
            ran = ExperimentRun(planned, tmp_path / "out", tmp_path / "ledger", screen, watchdog=False)
            task = asyncio.create_task(ran.run(stop))
            async with asyncio.timeout(60):
                while not pauses(server):  # noqa: ASYNC110 - the server sees it
                    await asyncio.sleep(0.01)
                stop.set()
                report = await task
    assert report["exit_code"] == 130
    assert pauses(server)[-1] == "/continue_generation"
    assert not list((tmp_path / "ledger").glob("*"))


@pytest.mark.parametrize(("at_once", "together"), [(1, 1), (2, 2)])
async def test_the_blast_radius(tmp_path: Path, at_once: int, together: int) -> None:
    """Two targets, and as many of them with something in force as the file says; never two on one."""
    servers = [Server(), Server(), Server()]
    async with servers[0].listening() as main, servers[1].listening() as one, servers[2].listening() as two:
        values: dict[str, Any] = experiment(main, [{"do": "latency", "at": "1s", "for": "1s"}]).model_dump(
            mode="json", by_alias=True
        )
        values["targets"] |= {
            "one": {"url": one, "disruptive": True},
            "two": {"url": two, "disruptive": True},
        }
        pause = {"do": "pause", "mode": "in_place", "at": "10ms", "for": "300ms"}
        values["actions"] = [{**pause, "target": name} for name in ("one", "two", "one")]
        values["blast_radius"] = {"at_once": at_once}
        report = await conduct(Experiment.model_validate(values), tmp_path)
    spans = sorted((deed["began_s"], deed["ended_s"], deed["target"]) for deed in report["done"])
    most = max(sum(a <= begin < b for a, b, _ in spans) for begin, _, _ in spans)
    assert most == together
    ones = [(a, b) for a, b, target in spans if target == "one"]
    assert ones[0][1] <= ones[1][0]


async def test_commands_restart_one_after_the_other(tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        log = tmp_path / "log"
        values = experiment(url, [{"do": "flush", "at": "1s"}]).model_dump(mode="json", by_alias=True)
        say = ["sh", "-c", f'echo "$0" >> {log}']
        values["targets"] |= {
            name: {"url": url, "disruptive": True, "restart": [*say, name], "ready_within": "20s"}
            for name in ("a", "b")
        }
        values["targets"]["server"] |= {"kill": [*say, "kill"], "start": [*say, "start"]}
        values["actions"] = [
            {"do": "rolling-restart", "targets": ["b", "a"], "at": "10ms", "apart": "10ms"},
            {"do": "kill", "at": "20ms", "for": "10ms"},
            {"do": "restart", "target": "a", "at": "30ms"},
        ]
        report = await conduct(Experiment.model_validate(values), tmp_path)
    assert [one["outcome"] for one in report["done"]] == ["done"] * 3, report["done"]
    assert log.read_text().split() == ["b", "a", "kill", "start", "a"]
    assert report["exit_code"] == 0


async def test_a_command_that_fails_is_said(tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        values = experiment(url, [{"do": "flush", "at": "1s"}]).model_dump(mode="json", by_alias=True)
        values["targets"]["server"] |= {"restart": ["false"], "ready_within": "20s"}
        values["actions"] = [{"do": "restart", "at": "10ms"}]
        report = await conduct(Experiment.model_validate(values), tmp_path)
    (deed,) = report["done"]
    assert deed["outcome"] == "failed"
    assert "false ended with 1" in deed["detail"]
    assert report["exit_code"] == 3
    assert report["undone"][0]["words"] == "it serves"


@pytest.mark.parametrize("lost", ["gone", "cut", "refused"])
async def test_half_an_answer_makes_no_other_server(lost: str) -> None:
    """A bad network once took /model_info away from /server_info: the rest looked like another server."""

    async def model(request: web.Request) -> web.Response:
        if lost == "gone":
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=502 if lost == "refused" else 200, text='{"is_gen')

    routes = {"/server_info": {"version": "0.5.18", "model_path": "m"}, "/model_info": model}
    async with serving(routes=routes) as url, SGLangClient(url) as client:
        with pytest.raises(TargetUnusable, match="no whole answer"):
            await server_now(client)


async def test_a_command_that_does_not_end_is_ended() -> None:
    ok, words = await run_command(["sleep", "60"], 0.1, None)
    assert not ok
    assert "had not ended after 0.1 s" in words
    assert await run_command(["no such program"], 1, None) == (
        False,
        "no such program: No such file or directory",
    )
