"""The first steps of everything that works on a server: a client, is it free, a stop before it began.

Sends nothing by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from soak.config import Config, ConfigError
from soak.run.parts import IN_FLIGHT
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import Target, TargetUnusable

T = TypeVar("T")


class Interrupted(Exception):
    """Stopped before anything was sent: there is nothing to report."""


async def unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """What ``work`` comes to; cancelled as soon as ``stop`` is set. Raises Interrupted."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted("interrupted before any load was sent")
        return task.result()
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


def client_for(config: Config) -> SGLangClient:
    """A client with room for all that the budget lets be in flight. Raises ConfigError."""
    try:
        return SGLangClient(
            config.target.url,
            api_key=config.target.api_key(),
            worker_header=config.target.worker_header,
            max_connections=(config.budget.in_flight or IN_FLIGHT) + config.probe.concurrency + 8,
        )
    except ValueError as error:
        raise ConfigError(f"target: {error}") from error


def refuse_if_busy(config: Config, target: Target) -> None:
    """Raises TargetUnusable for a server that works for others, unless the config shares it with them."""
    busy = (target.running or 0) + (target.queued or 0)
    if busy and not config.shared:
        raise TargetUnusable(
            f"{config.target.url} is busy with {busy} requests that are not ours. If other "
            "people's traffic may run beside a soak, set target.shared: true (probes then take 2% of its "
            "pools a minute); else wait until the server is idle."
        )
