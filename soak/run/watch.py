"""Watches the server while a run goes on: what is queued, and is it there."""

from __future__ import annotations

import time

from asyncio_throttle.throttler import Throttler

from soak.drive.brake import Brake
from soak.run.continuity import Continuity
from soak.sglang.server_metrics import LOADS, ServerMetrics, parse_loads, parse_metrics
from soak.sglang.session import NOTHING, Session

_POLL_S = 0.05  # by itself the throttler would wake the event loop a hundred times a second


class ServerWatch:
    """Asks the target about once a second for the brake, and knows for how long nothing has answered.

    /metrics if the server has it, else /v1/loads: the same queue and usage, and no counters. continuity: told
    of every look, and may say that another server answers by now; without one that is not looked for.
    session: knows what of ours was on the server while it was looked at.
    """

    def __init__(
        self,
        session: Session,
        brake: Brake,
        lost_after_s: float,
        continuity: Continuity | None = None,
    ) -> None:
        self._session, self._client = session, session.client
        self._brake, self._lost_after_s = brake, lost_after_s
        self._continuity = continuity
        self._throttler = Throttler(rate_limit=1, period=1.0, retry_interval=_POLL_S)
        self._last_alive = time.monotonic()
        self.latest: ServerMetrics | None = None
        self.ours = NOTHING  # what of ours the server may have counted when it said the latest

    def alive(self) -> None:
        """Something answered just now."""
        self._last_alive = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since anything answered."""
        return time.monotonic() - self._last_alive

    async def until_lost(self) -> str:
        """Return, with words, when it has not answered for as long as the config allows, or is another."""
        while self._gone_s < self._lost_after_s:
            silent_since = self._last_alive
            async with self._throttler:
                looked = self._session.looking()
                text = await self._client.metrics_text()
            latest: ServerMetrics | None
            if text is not None:
                self.alive()
                latest = parse_metrics(text)
            else:
                latest = await self._loads()
            self.latest, self.ours = latest, looked()
            self._brake.server_says(self.latest)
            if self._continuity is not None:
                there = self._last_alive > silent_since
                another = await self._continuity.polled(there, self.latest, silent_since)
                if another:
                    return another
        return f"nothing at {self._client.base_url} has answered as a server for {self._gone_s:.0f} s"

    @property
    def _gone_s(self) -> float:
        """Seconds without the server, even where something else answers at its address."""
        gone_s = 0.0 if self._continuity is None else self._continuity.gone_s
        return max(self.silent_s, gone_s)

    async def _loads(self) -> ServerMetrics | None:
        """What /v1/loads says, where there are no metrics; None on a server that has neither."""
        status, value, _ = await self._client.get_json(LOADS)
        if status is not None and status not in (502, 503, 504):
            self.alive()  # a 404 from an older release is a sign of life, a proxy without its server is none
        return parse_loads(value)
