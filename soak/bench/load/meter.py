"""What a client's requests cost from the first after its warm-up to the last.

Counted in requests, not in time: a round of so many seconds would hold few requests on a busy machine, and
what is paid once (connections, tables) would count as their cost.
"""

from __future__ import annotations

import time


class Meter:
    """Told of each request that is done; ``skip``: those of the warm-up."""

    def __init__(self, requests: int, skip: int, longest_s: float) -> None:
        self._skip, self._last = skip, skip + requests
        self._sent = self._done = self._chunks = 0
        self._late_s = time.monotonic() + longest_s
        self._began: tuple[float, float, int] | None = None
        self.requests = self.chunks = 0
        self.wall_s = self.cpu_s = 0.0

    def more(self) -> bool:
        """Whether one more is to be sent."""
        self._sent += 1
        return self._sent <= self._last and time.monotonic() < self._late_s

    def done(self, chunks: int = 0) -> None:
        """One was answered, in so many chunks."""
        self._done += 1
        self._chunks += chunks
        if self._done == self._skip:
            self._began = time.monotonic(), time.process_time(), self._chunks
        elif self._began is not None:
            began_s, cpu_s, before = self._began
            self.requests, self.chunks = self._done - self._skip, self._chunks - before
            if self._done == self._last or time.monotonic() >= self._late_s:
                self.wall_s, self.cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
