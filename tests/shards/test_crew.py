"""Several workers, one run: killed, stopped, over several servers; one summary, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from soak import config as configs
from soak.export.terminal import Terminal
from soak.plan.plan import Plan
from soak.plan.restored import spec_of
from soak.shards.crew import Crew
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.test_soaking import config, nothing_left, until

EXACT = SimConfig(numerics="exact", seed=5)
SPOILED = SimConfig(numerics="exact", seed=5, faults=("state-not-restored",))


def of(url: str, shards: int, **sections: dict[str, Any]) -> configs.Config:
    given = {name: dict(section) for name, section in sections.items()}
    given["run"] = {"duration": "6s", "drain": "3s", **given.get("run", {}), "shards": shards}
    given["detect"] = {"max_abs_d": 1e-4, "min_valid_probes": 3, **given.get("detect", {})}
    given["load"] = {"rate": 8, "shapes": {"shared-prefix": 1, "long-context": 1}, **given.get("load", {})}
    return config(url, **given)


async def told(screen: io.StringIO, what: Callable[[], bool], run: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(60):
        while not what():
            assert not run.done(), screen.getvalue()
            await asyncio.sleep(0.05)


def sent(out: Path) -> list[tuple[int, int, int, int]]:
    """(shard, index, step, part) of every load prompt in the journals."""
    rows = []
    for path in sorted(out.glob("shard-*/journal.sqlite")):
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(path) as db:  # not made yet
            shard = int(path.parent.name.split("-")[1])
            rows += [
                (shard, *row) for row in db.execute("SELECT idx, step, part FROM prompts WHERE pass IS NULL")
            ]
    return rows


async def test_a_killed_worker_is_gone_on_with_and_no_index_comes_twice(tmp_path: Path) -> None:
    screen = io.StringIO()
    async with running(EXACT) as url:
        with Terminal(screen, live=False) as terminal:
            crew = Crew(of(url, 2, metrics={"port": 0}), tmp_path, terminal, command="again")
            run = asyncio.create_task(crew.run(asyncio.Event()))
            await told(screen, lambda: len({row[0] for row in sent(tmp_path)}) == 2, run)
            base = re.search(r"^metrics at (http://.*)/metrics$", screen.getvalue(), re.MULTILINE)
            assert base is not None
            async with aiohttp.ClientSession() as session, session.get(f"{base[1]}/metrics") as answer:
                page = await answer.text()
            first = crew.pids[1]
            assert first is not None
            os.kill(first, signal.SIGKILL)
            summary = await run
        await nothing_left(url)
    assert {'soak_shard_up{shard="0"} 1.0', 'soak_shard_up{shard="1"} 1.0'} <= set(page.splitlines())
    assert page.count("# TYPE soak_requests_total counter") == 1
    assert "shard 1: its worker was killed by signal 9; gone on with from its journal" in screen.getvalue()
    assert crew.pids[1] != first
    rows = sent(tmp_path)
    assert len(rows) == len(set(rows))
    assert all(index % 2 == shard for shard, index, _, _ in rows)
    resumed = {row["number"]: row["first_index"] for row in summary["shards"]}
    assert resumed[0] == 0
    assert resumed[1] > 0
    assert max(index for shard, index, _, _ in rows if shard == 1) >= resumed[1]
    assert summary["verdict"] in ("CLEAN", "CALIBRATING", "VACUOUS")
    assert summary["detector"]["alarms"] == []
    assert json.loads((tmp_path / "summary.json").read_text())["probes"] == summary["probes"]
    # what was sent is what the plan of the whole run says
    ran = json.loads((tmp_path / "run.json").read_text())
    plan = Plan(ran["seed"], spec_of(ran["spec"]), ran["nonce"])
    planned = {(i.index, i.step) for n in range(max(r[1] for r in rows) + 1) for i in plan.items(n)}
    assert {(index, step) for _, index, step, _ in rows} <= planned


async def test_each_replica_is_judged_by_its_own_shards(tmp_path: Path) -> None:
    screen = io.StringIO()
    async with running(EXACT) as well, running(SPOILED) as ill:
        loaded = of(well, 2, target={"replicas": [ill]}, run={"duration": "90s"})
        with Terminal(screen, live=False) as terminal:
            stop = asyncio.Event()
            run = asyncio.create_task(Crew(loaded, tmp_path, terminal).run(stop))
            await told(screen, lambda: "shard 1: CORRUPT" in screen.getvalue(), run)
            stop.set()
            summary = await run
    rows = {row["target"]: row for row in summary["replicas"]}
    assert rows[ill]["verdict"] == summary["verdict"] == "CORRUPT"
    assert rows[well]["verdict"] not in ("CORRUPT", "SUSPECT")
    assert rows[well]["shards"] == [0]
    assert rows[ill]["shards"] == [1]
    assert {alarm["shard"] for alarm in summary["detector"]["alarms"]} == {1}
    assert "is not quite like" in screen.getvalue()


async def test_an_interrupt_stops_all_and_leaves_nothing_on_the_server(tmp_path: Path) -> None:
    slow = SimConfig(numerics="exact", seed=5, step_delay_s=0.05)
    async with running(slow) as url:
        written = of(url, 3, run={"duration": "10m"}).model_dump(mode="json", exclude_unset=True)
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({**written, "run": {"duration": "10m", "seed": 3}}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "soak", "run", str(tmp_path / "c.yaml"), "--workers", "3"),
            *("--out", str(tmp_path / "out")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            await until(url, lambda n: n >= 3, within_s=60)
            process.send_signal(signal.SIGINT)
            output, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 130, output.decode()
        await nothing_left(url)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["interrupted"]
    assert [row["number"] for row in summary["shards"]] == [0, 1, 2]


async def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    slow = SimConfig(numerics="exact", seed=5, step_delay_s=0.05)
    async with running(slow) as url:
        written = of(url, 2).model_dump(mode="json", exclude_unset=True)
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({**written, "run": {"duration": "10m", "seed": 3}}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "soak", "run", str(tmp_path / "c.yaml"), "--workers", "2"),
            *("--out", str(tmp_path / "out"), "--quiet"),
        )
        await until(url, lambda n: n >= 2, within_s=60)
        process.kill()
        await process.wait()
        await until(url, lambda n: n == 0, within_s=60)
        async with asyncio.timeout(60):  # other processes write them
            while len(list((tmp_path / "out").glob("shard-*/summary.json"))) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
