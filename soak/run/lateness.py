"""Is this process late? What a busy event loop of ours adds to a latency must not be blamed on the server.

A tick every few milliseconds; a time since the last tick that is much longer says that something of ours held
the loop, and every sample of that time is marked. Marks, never corrects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from soak.drive.observation import Observation

TICK_S = 0.02
LATE_S = 0.03
"""A sample that this process delayed by more is marked; a shorter delay is noise beside any forward pass."""


class Lateness:
    """Runs from ``watch``; asked about each sample while it does."""

    def __init__(self, report: Callable[[float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._due_s = float("inf")  # of the next tick
        self._late_from_s = self._late_until_s = float("-inf")

    async def watch(self) -> None:
        """Report, every tick, by how many seconds the event loop was late. Runs until cancelled."""
        try:
            while True:
                self._due_s = self._clock() + TICK_S
                await asyncio.sleep(TICK_S)
                lag = max(0.0, self._clock() - self._due_s)
                if lag > LATE_S:
                    self._late_from_s, self._late_until_s = self._due_s, self._clock()
                self._report(lag)
        finally:
            self._due_s = float("inf")

    def spoiled(self, seen: Observation) -> bool:
        """Whether its times are partly ours: sent late, or read late because the loop was held."""
        if seen.lag_s > LATE_S:
            return True
        now_late = self._clock() - self._due_s > LATE_S  # held just now, and the tick has not come yet
        return now_late or self._late_until_s >= seen.answer.sent_s
