"""The tokens a run may ask of a server: one bucket for load and probes alike. Pure but for its clock."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 10.0  # of budget that the bucket holds


class Allowance:
    """A token bucket over ten seconds of budget; None as rate (tokens a second) lifts it.

    Load asks before it sends. Probes learn what they cost only when they are done: they are charged then, the
    level may fall below nothing, and nobody starts before it has come back.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._level = _SECONDS * rate if rate else 0.0
        self._at = clock()

    def _refill(self, rate: float) -> float:
        now, full = self._clock(), _SECONDS * rate
        self._level = min(full, self._level + (now - self._at) * rate)
        self._at = now
        return full

    def take(self, tokens: int) -> bool:
        """Whether ``tokens`` may be spent now; a request larger than the bucket passes when it is full."""
        if self._rate is None:
            return True
        full = self._refill(self._rate)
        if self._level < min(tokens, full):
            return False
        self._level -= tokens
        return True

    def charge(self, tokens: int) -> None:
        """Take what was spent already."""
        if self._rate is not None:
            self._refill(self._rate)
            self._level -= tokens

    @property
    def overdrawn(self) -> bool:
        """Whether nothing is left now."""
        if self._rate is None:
            return False
        self._refill(self._rate)
        return self._level <= 0

    @property
    def used_ratio(self) -> float | None:
        """Share of the ten seconds' tokens that is spent, over 1 while overdrawn; None without a limit."""
        if self._rate is None:
            return None
        full = self._refill(self._rate)
        return (full - self._level) / full
