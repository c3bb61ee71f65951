"""What probes may cost: a share of the prefill, a share of the server's pool a minute, a rate.

Cold passes evict the very victims that probes look for, so the share of victims found evicted slows them
down. The rate limiter polls and is unfair, which is no harm on this slow path.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from asyncio_throttle.throttler import Throttler

from soak.oracle.probe import ProbeOutcome, ProbeResult
from soak.sglang.allowance import Allowance

_START_TOKENS = 20_000  # what probes may spend before load has spent anything
_WINDOW_S = 60.0
_LOOKED_AT = 50  # the last located victims, from which the share of evicted ones is taken
_EVICTED_SHARE = 0.10
_SLOWEST = 8.0
_POLLED, _LONGEST_POLL_S = 0.02, 0.1  # how often a probe that waits asks again: a share of the period


class ProbeBudget:
    """Asked before every probe; told of every result."""

    def __init__(
        self,
        rate: float,
        *,
        prefill_share: float | None,
        pool_share_per_minute: float | None,
        pool_tokens: int | None,
        load_tokens: Callable[[], int],
        allowance: Allowance | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if rate <= 0:
            raise ValueError(f"a probe rate of {rate} would never probe")
        burst = max(1, int(rate))
        period = burst / rate
        # by itself it would wake the event loop a hundred times a second, for each probe that waits
        self._throttler = Throttler(burst, period, retry_interval=min(_LONGEST_POLL_S, period * _POLLED))
        self._prefill_share = prefill_share
        self._pool_share = pool_share_per_minute
        self._per_minute = (
            None
            if pool_share_per_minute is None or pool_tokens is None
            else pool_share_per_minute * pool_tokens
        )
        self._load_tokens = load_tokens
        self._allowance = allowance or Allowance(None)
        self._clock = clock
        self._spent_lately: deque[tuple[float, int]] = deque()
        self._lately = 0
        self._evicted: deque[bool] = deque(maxlen=_LOOKED_AT)
        self._slower = 1.0
        self.spent = 0
        self.waiting_for = ""

    def record(self, result: ProbeResult) -> None:
        """Account for one probe."""
        self.spend(result.tokens_spent)
        if result.outcome in (ProbeOutcome.VALID, ProbeOutcome.EVICTED) and not result.kind.invariance:
            self._evicted.append(result.outcome is ProbeOutcome.EVICTED)
        if len(self._evicted) == _LOOKED_AT and self._pool_share is not None:
            over = sum(self._evicted) / _LOOKED_AT > _EVICTED_SHARE
            self._slower = min(_SLOWEST, self._slower * 1.1) if over else max(1.0, self._slower / 1.1)

    def spend(self, tokens: int) -> None:
        """Account for tokens of a probe or a control."""
        self.spent += tokens
        self._allowance.charge(tokens)
        self._spent_lately.append((self._clock(), tokens))
        self._lately += tokens

    def used_ratio(self) -> float:
        """Share of the pool's minute that is used up, 0 without such a limit."""
        self._forget_old()
        return 0.0 if not self._per_minute else self._lately / self._per_minute

    def used_ratios(self) -> dict[str, float]:
        """Share in use of each budget that is limited, by name; 1 is all of it."""
        ratios = {"pool": self.used_ratio()}
        if self._prefill_share is not None and self._prefill_share < 1:
            ratios["prefill-share"] = self.spent / self._earned(self._prefill_share)
        spent = self._allowance.used_ratio
        if spent is not None:
            ratios["tokens-per-second"] = spent
        return ratios

    def _earned(self, share: float) -> float:
        return share / (1 - share) * self._load_tokens() + _START_TOKENS

    def _forget_old(self) -> None:
        now = self._clock()
        while self._spent_lately and self._spent_lately[0][0] < now - _WINDOW_S * self._slower:
            self._lately -= self._spent_lately.popleft()[1]

    def short_of(self) -> str:
        """What the next probe has to wait for; empty when it may go."""
        self._forget_old()
        if self._allowance.overdrawn:
            return "tokens-per-second"
        if self._per_minute is not None and self._lately >= self._per_minute:
            return "pool-share"
        share = self._prefill_share
        if share is not None and share < 1 and self.spent >= self._earned(share):
            return "prefill-share"
        return ""

    async def wait(self) -> None:
        """Return when the next probe may start."""
        while reason := self.short_of():
            self.waiting_for = reason
            await asyncio.sleep(0.1)
        self.waiting_for = ""
        async with self._throttler:
            return
