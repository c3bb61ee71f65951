"""The server goes away in the middle of a run and comes back: as it was, as another, or not at all."""

from __future__ import annotations

import asyncio
import io
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from soak.cli.incidents import explained
from soak.detect.detector import Detector
from soak.export.closing import closing_words
from soak.export.learnt import Learnt
from soak.export.terminal import Terminal
from soak.incident.journal_reader import JournalReader
from soak.oracle.divergence import Divergence
from soak.run.calibrating import CalibrationRun
from soak.run.exit_code import ExitCode
from soak.sglang.exchange import GenerateRequest
from soak.sglang.preflight import TargetUnusable
from tests.sglang.misbehaving import Behaviour, replies, serving, whole
from tests.sglang.small import Small
from tests.survival.runs import Running, alarms, config
from tests.survival.server import Server, every, load_only

LONG = {"duration": "60s", "drain": "1s"}


async def restarted(server: Server, out: Path, gone_s: float, **info: Any) -> Running:
    """A run over one restart; returned when it has gone on for a while, or has ended."""
    async with server.listening() as url:
        running = Running(config(url, run=LONG, stop={"lost_after": "10s"}), out)
        await running.until(lambda: server.requests > 60)
    began = time.monotonic()
    if gone_s:
        await running.until(lambda: "server is gone" in running.said)
    await asyncio.sleep(max(0.0, gone_s - (time.monotonic() - began)))
    server.restart(**info)
    return running


async def goes_on(server: Server, running: Running, words: str, more: int = 60) -> dict[str, Any]:
    async with server.listening():
        await running.until(lambda: words in running.said)
        before = server.requests
        await running.until(lambda: server.requests > before + more)
        running.stop.set()
        return await running.end()


async def test_the_same_server_again_is_noticed_and_soaked_on(tmp_path: Path) -> None:
    server = Server()
    running = await restarted(server, tmp_path, 2.0)
    summary = await goes_on(server, running, "the same server again after")
    assert "it was restarted, its cache is lost" in running.said
    (gap,) = summary["gaps"]
    assert gap["restarted"] is True
    assert 1.9 < gap["seconds"] < 30
    assert summary["load"]["undelivered"]["server-gone"] >= 5
    assert not any("load not delivered" in reason or "errors:" in reason for reason in summary["reasons"])
    assert any("the server was gone" in reason for reason in summary["reasons"])
    assert set(summary["load"]["outcomes"]) <= {"ok"}, "what was lost with it is counted apart"
    assert all((r["latency_s"]["max"] or 0.0) < gap["seconds"] for r in summary["requests"].values()), (
        "the gap is in no latency"
    )
    assert summary["probes"]["valid"] >= 2
    assert alarms(summary) == []


async def test_victims_of_the_lost_cache_are_not_asked_for(tmp_path: Path) -> None:
    server = Server()
    running = await restarted(server, tmp_path, 1.5)
    summary = await goes_on(server, running, "its cache is lost")
    # at 20 victims a second all that were held would come back as evicted
    assert summary["probes"]["victims_evicted"] <= 3


async def test_a_restart_too_short_to_be_missed_shows_in_what_the_server_says(tmp_path: Path) -> None:
    server = Server()
    running = await restarted(server, tmp_path, 0.0)
    summary = await goes_on(server, running, "the same server again")
    assert summary["gaps"][0]["restarted"] is True
    assert alarms(summary) == []


async def test_a_server_that_tells_nothing_counts_as_restarted(tmp_path: Path) -> None:
    server = Server(metrics=False)
    server.restart(startup_time=None)
    running = await restarted(server, tmp_path, 2.0, startup_time=None)
    summary = await goes_on(server, running, "whether it was restarted cannot be told")
    assert summary["gaps"][0]["restarted"] is None


async def test_a_network_that_was_away_is_no_restart(tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run=LONG), tmp_path)
        await running.until(lambda: server.requests > 60)
    await running.until(lambda: "server is gone" in running.said)
    summary = await goes_on(server, running, "it was not restarted")
    assert summary["gaps"][0]["restarted"] is False


@pytest.mark.parametrize(
    ("info", "field"),
    [({"attention_backend": "other"}, "attention_backend"), ({"model_path": "models/other"}, "model_path")],
)
async def test_another_server_is_gone_on_with_and_judged_by_itself(
    info: dict[str, Any], field: str, tmp_path: Path
) -> None:
    server = Server()
    state, journal = tmp_path / "state.sqlite", tmp_path / "journal.sqlite"
    async with server.listening() as url:
        loaded = config(
            url, run={**LONG, "state": str(state)}, journal={"path": str(journal)}, metrics={"port": 0}
        )
        running = Running(loaded, tmp_path / "one")
        await running.until(lambda: server.requests > 150)
    await running.until(lambda: "server is gone" in running.said)
    first = server.small.info
    server.restart(**info)
    summary = await goes_on(server, running, "going on with the other server", 150)
    assert alarms(summary) == []
    (gap,) = summary["gaps"]
    assert (gap["restarted"], gap["why"]) == (True, "another server")
    assert gap["seconds"] > 0.5, "the gap is shown"
    (before,) = summary["earlier_servers"]
    assert before["fingerprint"].get(field) == first.get(field, before["fingerprint"].get(field))
    assert summary["fingerprint"][field] == info[field] != before["fingerprint"].get(field)
    assert before["probes"]["valid"] >= 1
    assert summary["probes"]["valid"] >= 1
    assert summary["detector"]["kinds"] != before["detector"]["kinds"], "calibration began anew"
    assert any("2 servers were soaked" in reason for reason in summary["reasons"])
    assert any(field in reason for reason in summary["reasons"])
    assert fingerprints(state) == 2, "each server has evidence of its own"
    with sqlite3.connect(journal) as db:
        sent = db.execute(
            "SELECT idx, count(DISTINCT session) FROM prompts WHERE origin = 0 GROUP BY idx"
        ).fetchall()
    assert len(sent) > 20
    assert [index for index, times in sent if times > 1] == [], "the plan goes on, and no index is sent twice"
    rids = [rid for request in server.seen.requests for rid in request.rids]
    assert len(rids) == len(set(rids))
    assert "Earlier servers" in closing_words(summary)


async def test_a_server_with_another_geometry_ends_the_run(tmp_path: Path) -> None:
    """The plan was made for the first one's, and never changes."""
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run=LONG), tmp_path)
        await running.until(lambda: server.requests > 60)
    await running.until(lambda: "server is gone" in running.said)
    server.restart(chunked_prefill_size=64)
    async with server.listening():
        summary = await running.end()
    assert summary["exit_code"] == ExitCode.TARGET
    (why,) = [reason for reason in summary["reasons"] if "target lost" in reason]
    assert "another geometry" in why
    assert "chunk" in why
    assert alarms(summary) == []
    assert server.left == set()


async def test_servers_that_take_turns_behind_one_address_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soak.run.continuity._LOOK_EVERY_S", 0.5)
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run=LONG), tmp_path)
        await running.until(lambda: server.requests > 60)
        first = dict(server.small.info)
        server.small.info["model_path"] = "models/other"
        await running.until(lambda: "going on with the other server" in running.said)
        server.small.info.clear()
        server.small.info.update(first)
        summary = await running.end()
    assert summary["exit_code"] == ExitCode.TARGET
    assert any("take turns" in reason for reason in summary["reasons"])
    assert alarms(summary) == []


def fingerprints(state: Path) -> int:
    with sqlite3.connect(state) as db:
        return int(db.execute("SELECT count(*) FROM evidence").fetchone()[0])


async def test_a_server_swapped_behind_the_address_spoils_no_evidence(tmp_path: Path) -> None:
    """No gap, no reset: from one request to the next another model answers, as behind a load balancer."""
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run=LONG), tmp_path)
        await running.until(lambda: server.requests > 150)
        server.shift = 3.0
        server.small.info["model_path"] = "models/other"
        await running.until(lambda: "going on with the other server" in running.said)
        before = server.requests
        await running.until(lambda: server.requests > before + 60)
        running.stop.set()
        summary = await running.end()
    assert len(summary["earlier_servers"]) == 1
    assert alarms(summary) == []
    assert alarms(summary["earlier_servers"][0]) == []


class Workers(Small):
    """Three processes behind a router, which answer in turn: starts and counters are of whoever is asked."""

    def server_info(self) -> dict[str, Any]:
        self._turn += 1
        return {**super().server_info(), "startup_time": {"scheduler_e2e": 20.0 + self._turn % 3}}


class Router(Server):
    async def _metrics(self, request: web.Request) -> web.Response:
        self.tokens = self.requests * 100 * (1 + self.requests % 2)
        return await super()._metrics(request)


@pytest.mark.parametrize("met", [True, False], ids=["met when examined", "met later"])
async def test_a_routers_workers_that_answer_in_turn_are_no_restarts(
    met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soak.run.continuity._LOOK_EVERY_S", 0.0)
    server = Router(Workers() if met else Small(info={"startup_time": {"scheduler_e2e": 20.0}}))
    async with server.listening() as url:
        running = Running(config(url, run=LONG), tmp_path)
        if met:
            await running.until(lambda: "3 servers take turns" in running.said)
        else:
            await running.until(lambda: server.requests > 40)
            server.small.__class__ = Workers
            del server.small.info["startup_time"]
            await running.until(lambda: "take turns behind this address" in running.said)
        gaps = running.said.count("the same server again")
        assert gaps <= (0 if met else 2), "a worker that was not met before may be a restarted one"
        looks = server.small._turn
        await running.until(lambda: server.small._turn > looks + 5)
        assert running.said.count("the same server again") == gaps
        server.spoil = null_of_probes
        await running.until(lambda: "CORRUPT" in running.said)  # and what is bad is still believed
        running.stop.set()
        summary = await running.end()
    assert len(summary["gaps"]) == gaps
    assert {alarm["channel"] for alarm in alarms(summary)} == {"non-finite"}


def null_of_probes(wanted: GenerateRequest, _: int) -> Behaviour | None:
    if not wanted.return_logprob or wanted.max_new_tokens:
        return None
    start = wanted.logprob_start_len or 0
    bad = whole(lambda v: v["meta_info"]["input_token_logprobs"][2].__setitem__(0, None))
    return bad if len(wanted.prompts[0]) - start > 4 else None


async def test_workers_that_differ_are_refused_before_any_load(tmp_path: Path) -> None:
    class Differ(Small):
        def server_info(self) -> dict[str, Any]:
            self._turn += 1
            return {**super().server_info(), "attention_backend": f"backend-{self._turn % 2}"}

    async with Server(Differ()).listening() as url:
        with pytest.raises(TargetUnusable, match="servers that differ take turns"):
            await Running(config(url), tmp_path).task


async def test_a_server_that_stays_away_ends_the_run_with_all_it_found(tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run=LONG, stop={"lost_after": "2s"}), tmp_path)
        await running.until(lambda: server.requests > 60)
    began = time.monotonic()
    summary = await running.end()
    assert time.monotonic() - began < 30
    assert summary["exit_code"] == ExitCode.TARGET
    assert summary["gaps"][0]["ended_at"] is None
    assert summary["load"]["outcomes"]["ok"] >= 5
    (why,) = [reason for reason in summary["reasons"] if "target lost" in reason]
    kept = why.rsplit(maxsplit=1)[-1]
    with closing(JournalReader(tmp_path / "journal.sqlite")) as reader:
        assert [each.id for each in reader.incidents()] == [kept]
        told = explained(reader, kept, {})
    assert "target-lost on the server" in told
    assert re.search(r"Under way when it went, (one prompt|[1-9]\d* prompts)", told), told
    assert "tokens, up to" in told
    assert f"--seed {summary['seed']}" in " ".join(told.split())
    assert alarms(summary) == [], "it is no alarm"


async def test_a_proxy_without_its_server_is_a_gap_too(tmp_path: Path) -> None:
    server = Server()
    async with server.listening() as url:
        running = Running(config(url, run=LONG), tmp_path)
        await running.until(lambda: server.requests > 60)
    gateway = replies(502, b"<html>502 Bad Gateway</html>", "text/html")

    async def bad(_: web.Request) -> web.Response:
        return web.Response(status=502)

    async with serving(gateway, routes=dict.fromkeys(("/metrics", "/v1/loads"), bad), port=server.port):
        await running.until(lambda: "server is gone" in running.said)
    server.restart()
    summary = await goes_on(server, running, "the same server again")
    assert set(summary["load"]["outcomes"]) <= {"ok"}


async def test_errors_of_a_server_that_stays_are_not_put_down_to_a_gap(tmp_path: Path) -> None:
    server = Server(spoil=load_only(every(4, replies(503, b"down", "text/plain"))))
    async with server.listening() as url:
        running = Running(config(url), tmp_path)
        summary = await running.end()
    assert summary["gaps"] == []
    assert summary["load"]["outcomes"]["rejected"] >= 5
    assert summary["exit_code"] == ExitCode.LOAD


async def calibrated(server: Server, tmp_path: Path, meanwhile: Callable[[], None]) -> tuple[Learnt, str]:
    """A calibration that wants more controls than it gets; stopped when it has gone on for a while."""
    stop, text = asyncio.Event(), io.StringIO()
    async with server.listening() as url:
        loaded = config(url, run={"state": str(tmp_path / "s.sqlite")}, detect={"p0_max": 0.001})
        with Terminal(text, live=False) as screen:
            task = asyncio.create_task(CalibrationRun(loaded, screen).run(stop))
            async with asyncio.timeout(60):
                while server.requests < 150:  # noqa: ASYNC110 - nothing says it
                    await asyncio.sleep(0.02)
                meanwhile()
                before = server.requests
                while not (task.done() or (server.requests > before + 150 and "again" in text.getvalue())):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                stop.set()
                return await task, text.getvalue()


async def test_calibration_goes_on_over_a_restart(tmp_path: Path) -> None:
    server = Server()
    learnt, said = await calibrated(server, tmp_path, server.restart)
    assert "its cache is lost" in said
    assert learnt.interrupted and not learnt.lost
    assert not learnt.alarms


async def test_calibration_learns_nothing_of_a_server_swapped_behind_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controls between two models would be nats apart, and the floor of all that follows."""
    server = Server()
    learned: list[float] = []
    add = Detector.add_control

    def seen(self: Detector, kind: Any, control: Divergence, under_load: bool) -> Any:
        learned.append(control.max_abs)
        return add(self, kind, control, under_load)

    monkeypatch.setattr(Detector, "add_control", seen)

    def by_turns(_: GenerateRequest, number: int) -> None:
        server.shift = 3.0 * (number % 2)

    def swapped() -> None:
        server.spoil = by_turns
        server.small.info["model_path"] = "models/other"

    learnt, _ = await calibrated(server, tmp_path, swapped)
    assert "another server answers" in learnt.lost
    assert not learnt.alarms
    assert len(learned) > 5
    assert max(learned) < 1.0
