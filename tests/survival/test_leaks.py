"""Memory, descriptors, tasks and threads: flat, however long a run."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path

import pytest

from tests.survival.in_memory import plan_of, send, wired
from tests.survival.runs import config, soak
from tests.survival.server import Server

LOAD = config("http://127.0.0.1:1").load.model_dump(exclude_unset=True)


def open_things() -> tuple[int, int, int]:
    """Descriptors, tasks and threads of this process."""
    gc.collect()
    # the loop's own pool grows to a handful of threads, when it is used for the first times, and keeps them
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(threads)  # noqa: PTH208


async def settled(wanted: tuple[int, int, int]) -> tuple[int, int, int]:
    """What is open once connections that were closed have gone."""
    deadline = time.monotonic() + 30
    while open_things() > wanted and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing says it
        await asyncio.sleep(0.05)
    return open_things()


async def test_a_run_leaves_no_descriptor_task_or_thread(tmp_path: Path) -> None:
    async with Server().listening() as url:
        await soak(config(url, run={"duration": "0.3s"}), tmp_path / "warm")
    before = open_things()
    for number in range(2):
        server = Server()
        async with server.listening() as url:
            loaded = config(
                url, run={"duration": "1s", "state": str(tmp_path / "s.sqlite")}, load={**LOAD, "rate": 60}
            )
            await soak(loaded, tmp_path / str(number))
        assert server.requests > 60
    assert await settled(before) <= before


def resident_kb() -> int:
    """Resident memory of this process."""
    gc.collect()
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


async def grows(first: int, last: int, out: Path) -> tuple[int, int]:
    """Resident memory in KB after so many requests, and after so many."""
    with wired(out) as parts:
        plan, after_first, began = plan_of(parts), 0, open_things()
        for index in range(last):
            await send(parts, plan, index)
            if index + 1 == first:
                after_first = resident_kb()
            if index % 500 == 0:
                await asyncio.sleep(0)
                assert parts.record.journal is not None
                while parts.record.journal._writer._queue:  # noqa: ASYNC110 - the disk's pace, not memory, is asked about
                    await asyncio.sleep(0.005)
        assert len(parts.session._oldest) <= 1
        assert open_things() == began
        return after_first, resident_kb()


async def test_memory_does_not_grow_with_requests(tmp_path: Path) -> None:
    """The short form of the next one: past the victims' bound it is flat."""
    early, late = await grows(2_000, 5_000, tmp_path)
    assert late < 1.2 * early, f"{early} KB, then {late} KB"


@pytest.mark.slow
async def test_a_million_requests_take_no_more_memory_than_fifty_thousand(tmp_path: Path) -> None:
    last = int(os.environ.get("SOAK_TEST_REQUESTS", "1000000"))
    began = time.monotonic()
    early, late = await grows(50_000, last, tmp_path)
    print(f"{early >> 10} MB after 50,000, {late >> 10} MB after {last:,}; {time.monotonic() - began:.0f} s")
    assert late < 1.2 * early
