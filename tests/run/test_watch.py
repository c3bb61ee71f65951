"""The watch: what it goes by on servers with metrics, without them, and with neither."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from aiohttp import web

from soak.drive.brake import Brake, StopLimits
from soak.run.watch import ServerWatch
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.sglang.misbehaving import serving


@asynccontextmanager
async def watching(
    url: str, limits: StopLimits, session: Session | None = None
) -> AsyncIterator[tuple[ServerWatch, Brake]]:
    async with SGLangClient(url) as client:
        brake = Brake(limits)
        watch = ServerWatch(session or Session(client, "run"), brake, lost_after_s=30)
        task = asyncio.create_task(watch.until_lost())
        try:
            yield watch, brake
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(held: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not held():  # noqa: ASYNC110 - the watch has no event to wait for
            await asyncio.sleep(0.02)


def loads(waiting: int, usage: float) -> dict[str, Any]:
    return {"loads": [{"dp_rank": 0, "num_waiting_reqs": waiting, "token_usage": usage}, {"dp_rank": 1}]}


async def test_a_simulator_without_metrics_is_read_on_its_loads() -> None:
    for enabled in (True, False):
        config = SimConfig(enable_metrics=enabled, max_total_tokens=8192)
        async with running(config) as url, watching(url, StopLimits()) as (watch, brake):
            await until(lambda: watch.latest is not None)
            seen = watch.latest
            assert seen is not None
            assert (seen.running, seen.queued, seen.token_usage) == (0, 0, 0)
            assert seen.max_total_tokens == 8192
            assert (seen.requests_total is None) is not enabled
            assert brake.reason is None


async def test_the_queue_that_loads_tell_of_closes_the_brake() -> None:
    async with (
        serving(routes={"/v1/loads": loads(7, 0.5)}) as url,
        watching(url, StopLimits(queue=6)) as (_, brake),
    ):
        await until(lambda: brake.reason == "server-queue")


async def test_so_does_a_full_pool_with_somebody_waiting() -> None:
    async with (
        serving(routes={"/v1/loads": loads(1, 0.995)}) as url,
        watching(url, StopLimits()) as (_, brake),
    ):
        await until(lambda: brake.reason == "server-token-usage")


async def test_a_server_with_neither_is_alive_all_the_same() -> None:
    asked: list[str] = []

    async def missing(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"detail": "Not Found"}, status=404)

    async with (
        serving(routes={"/v1/loads": missing}) as url,
        watching(url, StopLimits()) as (watch, brake),
    ):
        before = watch.silent_s
        await until(lambda: bool(asked) and watch.silent_s < before + 1)
        assert watch.latest is None
        assert brake.reason is None


async def test_what_was_in_flight_while_the_server_was_asked_is_ours_though_it_is_answered_by_then() -> None:
    """Else a request that ends between the server's words and ours passes for one of somebody else's."""
    sessions: list[Session] = []

    async def metrics(_: web.Request) -> web.Response:
        if sessions:  # ours comes and goes while the server counts
            await sessions[0].generate([np.arange(5, dtype=np.int32)])
        return web.Response(text="sglang:num_running_reqs 1.0\n")

    async with serving(routes={"/metrics": metrics}) as url, SGLangClient(url) as client:
        sessions.append(Session(client, "run"))
        async with watching(url, StopLimits(), sessions[0]) as (watch, _):
            await until(lambda: watch.latest is not None)
            assert watch.latest is not None and watch.latest.running == 1
            assert (watch.ours.in_flight, watch.ours.sent, watch.ours.answered) == (1, 1, 0)
            assert sessions[0].prompts_in_flight == 0
