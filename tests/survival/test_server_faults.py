"""A server that does one thing wrong, again and again, while a run is at it: what the run makes of it.

In each: the run ends on time, every prompt sent is accounted for, the spoiled ones under their own name, and
nothing is called corrupt that is only rude.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from soak.run.connecting import Interrupted
from soak.run.exit_code import ExitCode
from soak.sglang.exchange import GenerateRequest
from soak.sglang.preflight import TargetUnusable
from tests.sglang.misbehaving import BEHAVIOURS, Behaviour, serving, whole
from tests.sglang.small import Small
from tests.survival.runs import Running, alarms, config, soak
from tests.survival.server import Server, every, load_only

SHORT = {"duration": "0.6s", "drain": "3s"}
QUICK = {**config("http://127.0.0.1:1").load.model_dump(exclude_unset=True), "rate": 35}


class Spoiled:
    """A server that answers every third load request so; how often it did."""

    def __init__(self, behaviour: Behaviour, each: int = 3) -> None:
        self.count = 0

        async def counted(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
            self.count += len(wanted.rids)
            return await behaviour(request, wanted)

        self.server = Server(spoil=load_only(every(each, counted)))


def accounted(summary: dict[str, Any]) -> None:
    """Every prompt that was sent has an outcome, and every one that was not a reason."""
    load = summary["load"]
    assert sum(load["outcomes"].values()) + sum(load["in_gaps"].values()) == load["delivered"]
    assert load["asked"] == load["delivered"] + sum(load["undelivered"].values())
    assert summary["journal"]["dropped"] == 0


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("queue_full", "rejected"),
        ("too_many", "rejected"),
        ("bad_request", "rejected"),
        ("crash", "server_error"),
        ("bad_gateway", "server_error"),
        ("redirect", "malformed"),
        ("error_in_200", "in_band_error"),
        ("not_json", "malformed"),
        ("empty", "malformed"),
        ("aborted", "aborted"),
        ("gzip_damaged", "malformed"),
        ("stream_half", "disconnected"),
        ("stream_breaks", "disconnected"),
        ("stream_without_done", "disconnected"),
        ("stream_empty", "disconnected"),
        ("stream_error", "in_band_error"),
        ("stream_not_json", "malformed"),
        ("stream_stalls", "timed_out"),
        ("never", "timed_out"),
    ],
)
async def test_rude_answers_are_counted_by_name(name: str, outcome: str, tmp_path: Path) -> None:
    spoiled = Spoiled(BEHAVIOURS[name])
    began = time.monotonic()
    async with spoiled.server.listening() as url:
        patience = "1s" if outcome == "timed_out" else "20s"
        summary = await soak(config(url, run=SHORT, load=QUICK, probe=probing(patience)), tmp_path)
    assert time.monotonic() - began < 15
    accounted(summary)
    assert spoiled.count >= 2
    assert summary["load"]["outcomes"][outcome] == spoiled.count
    assert set(summary["load"]["outcomes"]) == {"ok", outcome}
    assert summary["exit_code"] == ExitCode.LOAD, summary["reasons"]
    assert alarms(summary) == []


def probing(timeout: str) -> dict[str, Any]:
    return {**config("http://127.0.0.1:1").probe.model_dump(exclude_unset=True), "timeout": timeout}


@pytest.mark.parametrize(
    "name", ["gzip", "stream_split_character", "stream_repeats", "stream_goes_on_after_done"]
)
async def test_odd_but_whole_answers_are_taken(name: str, tmp_path: Path) -> None:
    spoiled = Spoiled(BEHAVIOURS[name])
    async with spoiled.server.listening() as url:
        summary = await soak(config(url, run=SHORT, load=QUICK), tmp_path)
    accounted(summary)
    assert spoiled.count >= 2
    assert set(summary["load"]["outcomes"]) == {"ok"}
    assert alarms(summary) == []


async def test_a_body_of_50_mb_is_taken_and_holds_nobody_up(tmp_path: Path) -> None:
    spoiled = Spoiled(BEHAVIOURS["huge"], each=10)
    async with spoiled.server.listening() as url:
        summary = await soak(config(url, run={**SHORT, "drain": "30s"}, probe=probing("60s")), tmp_path)
    accounted(summary)
    assert spoiled.count >= 1
    assert set(summary["load"]["outcomes"]) == {"ok"}


LONG_ENOUGH = 6  # logprobs: fewer come back from a request that only locates


@pytest.mark.parametrize(
    ("bend", "channel"),
    [
        (lambda v: v["meta_info"]["input_token_logprobs"][4].__setitem__(0, None), "non-finite"),
        (lambda v: v["meta_info"]["input_token_logprobs"].pop(), "broken-invariant"),
        (lambda v: v["meta_info"]["input_token_logprobs"][4].__setitem__(1, 3), "broken-invariant"),
        (lambda v: v["meta_info"].update(prompt_tokens=1), "broken-invariant"),
        (lambda v: v["meta_info"].update(id="soak-somebody-else-0000000001"), "broken-invariant"),
    ],
    ids=["null logprob", "fewer logprobs", "other ids", "other length", "another's answer"],
)
async def test_answers_that_cannot_be_right_are_alarms(bend: Any, channel: str, tmp_path: Path) -> None:
    server = Server()
    bad = whole(bend)

    def spoil(wanted: GenerateRequest, _: int) -> Behaviour | None:
        start = wanted.logprob_start_len
        long = start is not None and len(wanted.prompts[0]) - start > LONG_ENOUGH
        return bad if long and server.requests % 5 == 0 else None

    server.spoil = spoil
    async with server.listening() as url:
        summary = await soak(config(url, run={**SHORT, "duration": "1.5s"}), tmp_path)
    assert summary["verdict"] == "CORRUPT"
    assert {channel} == {alarm["channel"].replace("_", "-") for alarm in alarms(summary)}
    accounted(summary)


@pytest.mark.parametrize("name", ["queue_full", "crash", "not_json", "error_in_200", "never"])
async def test_probes_that_fail_are_invalid_and_never_a_pass(name: str, tmp_path: Path) -> None:
    def spoil(wanted: GenerateRequest, _: int) -> Behaviour | None:
        return BEHAVIOURS[name] if wanted.return_logprob else None

    server = Server(spoil=spoil)
    async with server.listening() as url:
        summary = await soak(config(url, run={**SHORT, "duration": "1.2s"}, probe=probing("0.2s")), tmp_path)
    assert summary["probes"]["valid"] == 0
    assert summary["verdict"] in ("CALIBRATING", "VACUOUS")
    assert summary["probes"]["invalid"]["request_failed"] > 0
    assert alarms(summary) == []


@pytest.mark.parametrize(
    "wrong", [{"separate_namespaces": False}, {"start_limits_match": False}, {"start_limits_answer": False}]
)
async def test_a_server_that_ignores_what_a_probe_needs_is_refused(
    wrong: dict[str, bool], tmp_path: Path
) -> None:
    async with Server(Small(**wrong)).listening() as url:  # type: ignore[arg-type]
        with pytest.raises(TargetUnusable, match=r"ignores (extra_key|logprob_start_len)"):
            await soak(config(url, run=SHORT, load=QUICK), tmp_path)


@pytest.mark.parametrize("knob", ["separate_namespaces", "start_limits_match"])
async def test_one_that_begins_to_ignore_it_gives_no_pass_from_then_on(knob: str, tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run={**SHORT, "duration": "60s"}), tmp_path)
        await running.until(lambda: any(r.return_logprob for r in server.seen.requests[40:]))
        setattr(server.small, knob, False)
        before = server.requests
        await running.until(lambda: server.requests > before + 80)
        running.stop.set()
        summary = await running.end()
    assert summary["probes"]["invalid"], "said, and by its reason"
    assert {"cold_hit", "boundary_moved"} & set(summary["probes"]["invalid"])
    assert summary["verdict"] != "CLEAN"
    assert alarms(summary) == []


async def test_a_connection_that_is_reset_when_it_is_used_again(tmp_path: Path) -> None:
    async def closes(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        response = await server.well(request, wanted)
        if not response.prepared:
            await response.prepare(request)
            await response.write_eof()  # all of the answer has gone out, however busy the machine is
        assert request.transport is not None
        asyncio.get_running_loop().call_later(0.002, request.transport.close)
        return response

    server = Server(spoil=lambda wanted, n: closes)
    async with server.listening() as url:
        summary = await soak(config(url, run=SHORT, load=QUICK), tmp_path)
    accounted(summary)
    assert set(summary["load"]["outcomes"]) == {"ok"}
    assert not any(reason.startswith("errors") for reason in summary["reasons"])


async def test_a_request_that_never_finishes_does_not_hold_the_end_up(tmp_path: Path) -> None:
    server = Server()
    server.spoil = load_only(every(20, server.never_ends))
    began = time.monotonic()
    async with server.listening() as url:
        loaded = config(url, run={"duration": "2s", "drain": "1s"}, probe=probing("10m"))
        summary = await soak(loaded, tmp_path)
        assert server.stuck
        assert server.left == set(), "taken back by name"
    assert time.monotonic() - began < 2 + 1 + 1 + 4
    assert summary["load"]["delivered"] > sum(summary["load"]["outcomes"].values())


async def test_a_server_that_answers_long_after_the_end_reaches_nobody(tmp_path: Path) -> None:
    late, answered = asyncio.Event(), asyncio.Event()

    async def answers_late(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        try:
            await late.wait()
        except asyncio.CancelledError:
            answered.set()  # its client is gone, which is all that it ever hears
            raise
        return await server.well(request, wanted)

    server = Server(spoil=load_only(every(10, answers_late)))
    async with server.listening() as url:
        loaded = config(url, run={"duration": "1s", "drain": "0.2s"}, probe=probing("10m"))
        summary = await soak(loaded, tmp_path)
        before = (tmp_path / "summary.json").read_bytes()
        sent = server.requests
        late.set()
        await asyncio.wait_for(answered.wait(), 20)
        await asyncio.sleep(0.3)
        assert server.requests == sent, "nothing is asked after the end"
    assert (tmp_path / "summary.json").read_bytes() == before
    assert summary["exit_code"] != ExitCode.FAULT


async def test_a_name_that_does_not_resolve_is_said_before_any_load(tmp_path: Path) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.getaddrinfo", gone)
        with pytest.raises(TargetUnusable, match="does not resolve"):
            await soak(config("http://localhost:9"), tmp_path)


async def test_a_name_that_stops_resolving_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = False
    resolve = aiohttp.TCPConnector._resolve_host

    async def sometimes(self: Any, *given: Any, **named: Any) -> Any:
        if gone:
            raise OSError(-2, "Name or service not known")
        return await resolve(self, *given, **named)

    monkeypatch.setattr(aiohttp.TCPConnector, "_resolve_host", sometimes)
    monkeypatch.setattr("soak.sglang.client._KEEPALIVE_S", 0.05)
    server = Server()
    async with server.listening() as url:
        loaded = config(url, run={"duration": "60s", "drain": "1s"})
        running = Running(loaded, tmp_path)
        await running.until(lambda: server.requests > 40)
        gone = True
        await running.until(lambda: "server is gone" in running.said)
        gone = False
        await running.until(lambda: "it was not restarted" in running.said)
        running.stop.set()
        summary = await running.end()
    assert summary["gaps"][0]["restarted"] is False
    assert set(summary["load"]["outcomes"]) == {"ok"}


async def test_a_stop_while_the_server_hangs_before_any_load(tmp_path: Path) -> None:
    async def hangs(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with serving(routes={"/server_info": hangs}) as url:
        running = Running(config(url), tmp_path)
        await asyncio.sleep(0.2)
        running.stop.set()
        with pytest.raises(Interrupted):
            await asyncio.wait_for(running.task, 20)
