"""What can go wrong on soak's own side: a busy process, a full disk, a taken port, a clock that is set."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from soak import config as configs
from soak.drive.observation import Observation
from soak.export.closing import closing_words
from soak.export.summary import write_atomically
from soak.export.tally import Tally
from soak.run.exit_code import ExitCode
from soak.run.lateness import LATE_S, TICK_S, Lateness
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from tests.export.samples import observation
from tests.survival.child import soaking
from tests.survival.runs import Running, alarms, config, soak
from tests.survival.server import Server


async def test_a_callback_of_50_ms_is_not_blamed_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Tally.observe_load

    def slow(self: Tally, seen: Observation, **marks: bool) -> None:
        counted(self, seen, **marks)
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(Tally, "observe_load", slow)
    server = Server()
    load = {**config("http://127.0.0.1:1").load.model_dump(exclude_unset=True), "rate": 12}
    async with server.listening() as url:
        loaded = config(url, run={"duration": "2s"}, load=load, thresholds={"latency_p99": "0.2s"})
        summary = await soak(loaded, tmp_path)
    assert summary["load"]["late_samples"] >= 3
    assert summary["load"]["loop_lag_s"]["max"] >= 0.04, "and the lag itself is exported"
    timed = sum(r["latency_s"]["count"] for r in summary["requests"].values())
    assert timed + summary["load"]["late_samples"] == summary["load"]["outcomes"]["ok"]
    assert any("soak itself was late" in reason for reason in summary["reasons"])
    assert not any("latency_p99" in reason for reason in summary["reasons"])
    assert alarms(summary) == []


async def test_a_sample_is_marked_by_what_held_the_loop_while_it_was_under_way() -> None:
    now = 100.0
    lags: list[float] = []
    lateness = Lateness(lags.append, lambda: now)
    task = asyncio.create_task(lateness.watch())
    await asyncio.sleep(0)
    before = observation(intended_s=99.0, sent_s=99.0, chunk_s=(99.9,))
    assert not lateness.spoiled(before)
    now += 10 * LATE_S  # held: the tick has not come yet
    assert lateness.spoiled(before)
    await asyncio.sleep(3 * TICK_S)
    assert lags
    assert lateness.spoiled(before), "and after it has come"
    later = observation(intended_s=now + 1, sent_s=now + 1, chunk_s=(now + 2,))
    now += 0.001
    assert not lateness.spoiled(later)
    assert lateness.spoiled(observation(intended_s=now, sent_s=now + 2 * LATE_S, chunk_s=(now + 1,)))
    task.cancel()


async def test_ten_thousand_rids_are_taken_back_several_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = most = 0
    taken: list[str] = []

    async def abort(_: SGLangClient, rid: str) -> bool:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        taken.append(rid)
        return True

    monkeypatch.setattr(SGLangClient, "abort", abort)
    lows: list[tuple[int, int]] = []
    session = Session(SGLangClient("http://127.0.0.1:1"), "run", lambda low, high: lows.append((low, high)))
    for _ in range(10_000):
        session._remember((session.rid(),))
    assert lows[-1] == (1, 10_000)
    began = time.process_time()
    assert await session.abort_outstanding() == 0
    assert time.process_time() - began < 2
    assert len(set(taken)) == 10_000
    assert most > 8, "one after the other, a slow server would hold the end up for ever"


@pytest.mark.parametrize("many", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_thousands_in_flight_are_taken_back_by_whole_names_over_http(many: int) -> None:
    """What is other people's runs on: of a prefix SGLang would take more than what is ours."""
    server = Server()
    server.spoil = lambda wanted, n: server.never_ends
    server.stuck = {"soak", "soak-run", "other", *(f"other-{n}" for n in range(100))}
    others = set(server.stuck)
    async with server.listening() as url, SGLangClient(url) as client:
        session = Session(client, "run")
        ours = tuple(session.rid() for _ in range(many))
        session._remember(ours)
        server.stuck.update(ours)
        began, busy = time.perf_counter(), time.process_time()
        assert await session.abort_outstanding() == 0
        took, cpu = time.perf_counter() - began, time.process_time() - busy
        print(
            f"{many:,} rids over HTTP in {took:.1f} s, {1e3 * cpu / many:.2f} ms of CPU each, server included"
        )
    assert server.left == others
    assert sorted(server.seen.aborted) == sorted(ours), "each once, by its whole name, and nothing else"


async def test_aborts_of_lost_requests_hold_no_answer_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def abort(_: SGLangClient, rid: str) -> bool:
        await asyncio.sleep(3600)
        return True

    monkeypatch.setattr(SGLangClient, "abort", abort)
    monkeypatch.setattr("soak.sglang.session._TELL_S", 0.05)
    async with SGLangClient("http://127.0.0.1:1") as client:
        session = Session(client, "run")
        async with asyncio.timeout(20):
            answers = await session.generate([np.arange(5, dtype=np.int32)] * 40)
        assert {a.outcome.value for a in answers} == {"disconnected"}
        assert await session.abort_outstanding(0.05) == 40
        await asyncio.sleep(0)
        assert not session._giving_back, "and nothing goes on behind the end"


async def test_a_full_disk_at_the_very_end_costs_the_file_and_not_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_atomically

    def full(path: Path, summary: Any) -> None:
        if path.name == "summary.json":
            raise OSError(28, "No space left on device")
        write(path, summary)

    monkeypatch.setattr("soak.run.soaking.write_atomically", full)
    async with Server().listening() as url:
        running = Running(config(url), tmp_path)
        summary = await running.task
    assert any("No space left on device" in reason for reason in summary["reasons"])
    assert "No space left on device" in closing_words(summary)
    assert "No space left on device" in running.said
    assert summary["exit_code"] != ExitCode.FAULT


async def test_a_disk_that_fills_up_in_the_middle_stops_nothing(tmp_path: Path) -> None:
    """The system refuses every file of the process to grow past 160 KB, as a full disk does."""
    server = Server()
    async with server.listening() as url:
        loaded = config(
            url, run={"duration": "4s", "drain": "2s", "report": False}, load={**LOAD, "rate": 40}
        )
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(loaded.model_dump(mode="json", exclude_unset=True)))
        soak_run = f"{sys.executable} -m soak run {tmp_path}/c.yaml --out {tmp_path}/out"
        child = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"ulimit -f 160; exec {soak_run} --state {tmp_path}/state.sqlite"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "2000"},
        )
        said = (await asyncio.wait_for(child.communicate(), 60))[0].decode()
    assert "journal: not written, trying again" in said
    assert "Load:" in said, "the summary is printed"
    assert re.search(r"The journal lost [1-9]", said), said
    assert child.returncode in (ExitCode.CLEAN, ExitCode.INCONCLUSIVE, ExitCode.LOAD), said
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["journal"]["dropped"] > 0


LOAD = config("http://127.0.0.1:1").load.model_dump(exclude_unset=True)


def run_cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "soak", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_output_that_cannot_be_written_is_said_before_any_load() -> None:
    done = run_cli("run", "--target", "http://127.0.0.1:9", "--out", "/proc/soak")
    assert done.returncode == ExitCode.USAGE
    assert "/proc/soak" in done.stderr
    assert "Traceback" not in done.stderr


async def test_nobody_needs_to_scrape_or_to_be_there(tmp_path: Path) -> None:
    """Prometheus and Alertmanager are never asked for anything; a Grafana that is down costs its marks."""
    server = Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAK_GRAFANA_TOKEN", "glsa_not_a_real_one_0123456789")
        async with server.listening() as url:
            loaded = config(url, metrics={"port": 0}, grafana={"url": "http://127.0.0.1:9"})
            summary = await soak(loaded, tmp_path)
    assert summary["exit_code"] in (ExitCode.CLEAN, ExitCode.INCONCLUSIVE), summary["reasons"]
    assert summary["load"]["outcomes"]["ok"] == summary["load"]["delivered"]


@pytest.mark.parametrize("step_s", [-86_400.0, 30 * 86_400.0])
async def test_a_clock_that_is_set_tears_nothing_apart(
    step_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    state = tmp_path / "state.sqlite"
    wall, wall_ns = time.time, time.time_ns
    async with server.listening() as url:
        running = Running(config(url, run={"duration": "2.5s", "state": str(state)}), tmp_path)
        await running.until(lambda: server.requests > 40)
        monkeypatch.setattr(time, "time", lambda: wall() + step_s)
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + round(step_s * 1e9))
        summary = await running.end()
        monkeypatch.undo()
    assert 2 <= summary["duration_s"] < 15
    assert all(r["latency_s"]["max"] < 5 for r in summary["requests"].values())
    assert summary["journal"]["rows"] > 40
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        (rows,) = db.execute("SELECT count(*) FROM prompts WHERE origin = 0").fetchone()
        low, high = db.execute("SELECT min(finished_us), max(finished_us) FROM prompts").fetchone()
    assert rows >= summary["load"]["delivered"] - 3, "a clock set forward ages nothing that is new"
    assert (high - low) / 1e6 < 15, "what happened together stays together"
    assert alarms(summary) == []


@pytest.mark.parametrize("value", ["yes", "on", "no", "true"])
def test_yes_is_not_the_number_1(value: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"run: {{seed: {value}, shards: {value}}}\n")
    with pytest.raises(configs.ConfigError, match=r"run\.seed: .*\n?.*run\.shards"):
        configs.load(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text(f"target: {{shared: {value}}}\n")
    assert configs.load(tmp_path / "c.yaml").target.shared is (value != "no")


async def test_a_demo_that_is_killed_takes_its_simulator_with_it(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "soak", "demo", "--out", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    async with asyncio.timeout(60):
        line = (await child.stdout.readline()).decode()
    found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
    assert found, line
    child.send_signal(signal.SIGKILL)
    await child.wait()
    async with asyncio.timeout(20):
        while await listens(int(found[1])):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.05)


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_run_whose_reader_is_gone_goes_on(tmp_path: Path) -> None:
    """``soak run | head -1``: a screen that cannot be written to costs the screen."""
    server = Server()
    async with server.listening() as url, soaking(url, tmp_path) as child:
        await child.says("resuming|metrics|soak|CALIBRATING", 30)
        assert child.process.stdout is not None
        child.process.stdout._transport.close()  # type: ignore[attr-defined]
        before = server.requests
        async with asyncio.timeout(20):
            while server.requests < before + 60:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        child.process.terminate()
        assert await asyncio.wait_for(child.process.wait(), 20) == ExitCode.INTERRUPTED
