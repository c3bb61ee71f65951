"""Several servers behind one address: who answered, whose verdict it is, what an answer from elsewhere is."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from pathlib import Path
from typing import Any

from soak import config as configs
from soak.export.closing import closing_words
from soak.export.terminal import Terminal
from soak.run.soaking import SoakRun
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.test_soaking import config
from tests.shards.router import routing

EXACT = SimConfig(numerics="exact", seed=5)
SPOILED = SimConfig(numerics="exact", seed=5, faults=("state-not-restored",))


def wanted(url: str) -> configs.Config:
    return config(
        url,
        run={"duration": "3m", "drain": "3s"},
        load={"rate": 6, "shapes": {"shared-prefix": 1, "long-context": 1}},
        detect={"max_abs_d": 1e-4, "min_valid_probes": 3},
    )


async def until(pattern: str, loaded: configs.Config, out: Path) -> tuple[dict[str, Any], str]:
    """A run that is stopped once it has said that; its summary, and all that it has said."""
    screen, stop = io.StringIO(), asyncio.Event()
    with Terminal(screen, live=False, plain_every_s=0.2) as terminal:
        run = asyncio.create_task(SoakRun(loaded, out, terminal).run(stop))
        while not re.search(pattern, screen.getvalue()) and not run.done():
            await asyncio.wait({run}, timeout=0.1)
        stop.set()
        return await run, screen.getvalue()


async def test_each_worker_that_is_named_gets_a_verdict_of_its_own(tmp_path: Path) -> None:
    async with running(EXACT) as well, running(SPOILED) as ill:
        async with routing([well, ill], "prefix") as (url, router):
            summary, _ = await until("CORRUPT: ", wanted(url), tmp_path)
    assert min(router.asked) > 0
    rows = {row["worker"]: row for row in summary["workers"]}
    assert summary["verdict"] == rows["worker-1"]["verdict"] == "CORRUPT"
    well_row = rows.get("worker-0", {"verdict": "not asked about yet", "alarms": []})
    assert well_row["verdict"] not in ("CORRUPT", "SUSPECT")
    assert well_row["alarms"] == []


async def test_a_probe_that_another_worker_answered_is_invalid(tmp_path: Path) -> None:
    async with running(EXACT) as one, running(EXACT) as other:
        async with routing([one, other], "turns") as (url, _):
            summary, said = await until(r"([3-9]|\d\d) invalid", wanted(url), tmp_path)
    assert summary["probes"]["invalid"]["elsewhere"] > 0
    assert any(" answered elsewhere" in line for line in closing_words(summary).splitlines())
    assert summary["verdict"] in ("VACUOUS", "CALIBRATING")
    assert summary["detector"]["alarms"] == []
    assert "were named in answers" in said


async def test_a_router_that_names_nobody_gets_one_verdict_and_says_so(tmp_path: Path) -> None:
    async with running(EXACT) as one, running(EXACT) as other:
        async with routing([one, other], "turns", names=False) as (url, _):
            summary, said = await until("take turns", wanted(url), tmp_path)
            doctor = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "soak", "doctor", url), stdout=asyncio.subprocess.PIPE
            )
            page, _ = await doctor.communicate()
    assert "there is one verdict over all" in " ".join(page.decode().split())
    assert summary["workers"] == []
    assert "elsewhere" not in summary["probes"]["invalid"]
    assert "there is one verdict over all" in said


async def test_load_and_probes_of_an_index_go_to_one_data_parallel_rank(tmp_path: Path) -> None:
    async with running(EXACT) as zero, running(EXACT) as one:
        async with routing([zero, one], "rank", names=False) as (url, router):
            summary, _ = await until(r"probes ([3-9]|\d\d) valid", wanted(url), tmp_path)
    assert None not in router.ranks
    assert set(router.ranks) <= {0, 1}
    assert {row["worker"] for row in summary["workers"]} <= {"dp0", "dp1"}
    assert summary["probes"]["valid"] > 0
    assert summary["probes"]["invalid"].get("elsewhere", 0) == 0
    assert summary["detector"]["alarms"] == []
