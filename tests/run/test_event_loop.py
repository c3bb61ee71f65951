"""The event loop of a run: whose it is, how its tasks begin, and the collector as it was afterwards."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest
import uvloop

from soak.run.event_loop import quiet_collector, runner


def test_uvloop_and_eager_tasks_where_python_has_them() -> None:
    async def begun() -> tuple[bool, bool]:
        seen: list[int] = []

        async def work() -> None:
            seen.append(1)

        task = asyncio.create_task(work())
        at_once = bool(seen)
        await task
        return isinstance(asyncio.get_running_loop(), uvloop.Loop), at_once

    with runner() as loop:
        assert loop.run(begun()) == (True, sys.version_info >= (3, 12))


def test_the_collector_is_as_it_was_however_a_run_ends() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(KeyError), quiet_collector():
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > frozen
        assert gc.isenabled()
        raise KeyError
    assert gc.get_threshold() == before
