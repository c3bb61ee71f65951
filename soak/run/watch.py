"""Watches the server and our own event loop while a run goes on: what is queued, is it there, are we late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from asyncio_throttle.throttler import Throttler

from soak.drive.brake import Brake
from soak.sglang.client import SGLangClient
from soak.sglang.server_metrics import LOADS, ServerMetrics, parse_loads, parse_metrics

_LOOP_TICK_S = 0.1


class ServerWatch:
    """Asks the target about once a second for the brake, and knows for how long nothing has answered.

    /metrics if the server has it, else /v1/loads: the same queue and usage, and no counters.
    """

    def __init__(self, client: SGLangClient, brake: Brake, lost_after_s: float) -> None:
        self._client, self._brake, self._lost_after_s = client, brake, lost_after_s
        self._throttler = Throttler(rate_limit=1, period=1.0)
        self._last_alive = time.monotonic()
        self.latest: ServerMetrics | None = None

    def alive(self) -> None:
        """Something answered just now."""
        self._last_alive = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since anything answered."""
        return time.monotonic() - self._last_alive

    async def until_lost(self) -> str:
        """Return, with words, when nothing has answered for as long as the config allows."""
        while self.silent_s < self._lost_after_s:
            async with self._throttler:
                text = await self._client.metrics_text()
            if text is not None:
                self.alive()
                self.latest = parse_metrics(text)
            else:
                self.latest = await self._loads()
            self._brake.server_says(self.latest)
        return f"nothing at {self._client.base_url} has answered for {self.silent_s:.0f} s"

    async def _loads(self) -> ServerMetrics | None:
        """What /v1/loads says, where there are no metrics; None on a server that has neither."""
        status, value, _ = await self._client.get_json(LOADS)
        if status is not None:  # a 404 from an older release is a sign of life, too
            self.alive()
        return parse_loads(value)


async def watch_loop_lag(report: Callable[[float], None]) -> None:
    """Report, every tick, by how many seconds the event loop was late. Runs until cancelled."""
    while True:
        due = time.monotonic() + _LOOP_TICK_S
        await asyncio.sleep(_LOOP_TICK_S)
        report(max(0.0, time.monotonic() - due))
