"""A soak that is killed with -9 and started again: alarms stand until a person says otherwise."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from soak.incident.journal_reader import JournalReader
from soak.incident.rebuild import read_trace
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.test_soaking import config, until

TOKEN = "a-token-of-sixteen"
ALARM = re.compile(r"CORRUPT: .*\(alarm ([0-9a-f]{8})\)")


class Child:
    """``soak run`` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def says(self, pattern: str) -> re.Match[str]:
        """The next line that has it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(90):
            while line := await self.process.stdout.readline():
                self.said.append(line.decode())
                if found := re.search(pattern, self.said[-1]):
                    return found
        raise AssertionError("it ended after:\n" + "".join(self.said))


@asynccontextmanager
async def soaking(url: str, folder: Path) -> AsyncIterator[Child]:
    written = config(url, metrics={"port": 0}, run={"duration": "10m", "seed": 3}, load={"rate": 4})
    (folder / "c.yaml").write_text(yaml.safe_dump(written.model_dump(mode="json", exclude_unset=True)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "soak", "run", str(folder / "c.yaml")),
        *("--state", str(folder / "state.sqlite"), "--out", str(folder / "out")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "SOAK_TOKEN": TOKEN, "COLUMNS": "2000", "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ask(base: str, method: str, path: str) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session:
        async with session.request(method, f"{base}{path}", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json() if path != "/metrics" else await answer.text()


async def test_an_alarm_outlives_kill_9_and_ends_by_acknowledging_over_http(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="production", faults=("state-not-restored",))) as url:
        async with soaking(url, tmp_path) as first:
            name = (await first.says(ALARM.pattern))[1]
            first.process.kill()  # it is on the disk before it is said
            await first.process.wait()
        await until(url, lambda n: n == 0)
        async with soaking(url, tmp_path) as second:
            await second.says(rf"still alarmed: CORRUPT .* until `soak ack {name}`")
            base = (await second.says(r"metrics at (http://.*)/metrics"))[1]
            (row,) = (row for row in (await ask(base, "GET", "/alarms"))["alarms"] if row["id"] == name)
            assert row["acked"] == "no"
            metrics = await ask(base, "GET", "/metrics")
            assert re.search(r'soak_alarms\{acked="no",.*verdict="CORRUPT"\} [1-9]', metrics)
            assert 'soak_verdict{verdict="CORRUPT"} 1.0' in metrics
            done = await ask(base, "POST", f"/alarms/{name}/ack")
            assert done["acked"] == "ack"
            again = ""
            while again in ("", name):  # fresh evidence: the fault is still there, and is found anew
                again = (await second.says(ALARM.pattern))[1]
            rows = {row["id"]: row["acked"] for row in (await ask(base, "GET", "/alarms"))["alarms"]}
            assert (rows[name], rows[again]) == ("ack", "no")
            second.process.terminate()
            await second.says("alarm " + again)
            assert await second.process.wait() == 130
    reader = JournalReader(tmp_path / "journal.sqlite")
    assert {name, again} <= {incident.id for incident in reader.incidents()}
    trace, notes = read_trace(reader, again)
    assert notes == []
    assert trace.case.victim is not None
    reader.close()
