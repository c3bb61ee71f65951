"""When load must wait: the server's own queue, token usage and time to first token against the stop limits.

Reads only what the server says of itself. A closed brake skips planned load (which is counted as not
delivered, with its reason); it never delays it into a pile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from soak.sglang.server_metrics import ServerMetrics


@dataclass(frozen=True, slots=True)
class StopLimits:
    """Past any of these, load backs off. ttft_s in seconds, token_usage as a share of the pool."""

    queue: int = 64
    token_usage: float = 0.99
    ttft_s: float = 30.0


class Brake:
    """Closed while a limit is passed; a late first token keeps it closed for as long as it was late.

    held: why we ourselves keep load back for a while, None while we do not. gone: the same while there is no
    server.
    """

    def __init__(self, limits: StopLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._server_reason: str | None = None
        self._late_until = 0.0
        self.held: str | None = None
        self.gone: str | None = None

    def server_says(self, metrics: ServerMetrics | None) -> None:
        """What it says now, on /metrics or /v1/loads; None (neither) leaves only the time to first token."""
        self._server_reason = None
        if metrics is None:
            return
        if metrics.queued is not None and metrics.queued > self._limits.queue:
            self._server_reason = "server-queue"
        elif metrics.queued and (metrics.token_usage or 0.0) > self._limits.token_usage:
            # a pool filled by the cache is evictable and healthy; only waiting requests make it pressure
            self._server_reason = "server-token-usage"

    def first_token_after(self, seconds: float) -> None:
        """A load request's time to first token."""
        if seconds > self._limits.ttft_s:
            self._late_until = self._clock() + min(seconds - self._limits.ttft_s, self._limits.ttft_s)

    @property
    def pressure(self) -> str | None:
        """What the server is short of, or None: then nobody may add to it."""
        if self.gone is not None or self._server_reason is not None:
            return self.gone or self._server_reason
        return "server-ttft" if self._clock() < self._late_until else None

    @property
    def reason(self) -> str | None:
        """Why load must wait now, or None."""
        return self.pressure or self.held
