"""What a plan costs a server an hour, from the plan's own first items. Upper bounds, not forecasts.

Nothing is sent: prefill is counted as if no prompt found anything cached.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

from soak.plan.plan import Plan

_SAMPLE = 1000  # indices looked at


@dataclass(frozen=True, slots=True)
class ProbeTerms:
    """What probes may take. rate: probes a second; pool_tokens: None if the server's pool is not known."""

    rate: float
    tail: int
    prefill_share: float | None
    pool_share_per_minute: float | None
    controls_needed: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Per hour, unless named otherwise. Tokens."""

    indices: int
    prompts: float
    prefill_tokens: float
    decode_tokens: float
    longest: int
    peak_starts: int
    cache_tokens: float
    state_slots: float | None
    tokens_per_probe: float
    probes_per_minute: float
    minutes_to_calibrate: float

    def words(self) -> str:
        """A table for people."""
        states = "none (no recurrent state named)" if self.state_slots is None else f"{self.state_slots:,.0f}"
        rows = [
            ("prompts an hour", f"{self.prompts:,.0f}"),
            ("prefill tokens an hour, if nothing is cached", f"{self.prefill_tokens:,.0f}"),
            ("decode tokens an hour", f"{self.decode_tokens:,.0f}"),
            ("longest prompt + output", f"{self.longest:,} tokens"),
            ("most prompts started within one second", f"{self.peak_starts}"),
            ("cache tokens displaced an hour (load and probes)", f"{self.cache_tokens:,.0f}"),
            ("state slots displaced an hour (load and probes)", states),
            ("prefill tokens a probe with its control", f"{self.tokens_per_probe:,.0f}"),
            ("probes a minute within these budgets", f"{self.probes_per_minute:.1f}"),
            ("minutes until calibrated", f"{self.minutes_to_calibrate:.1f}"),
        ]
        width = max(len(name) for name, _ in rows)
        body = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
        return f"{body}\n(from the first {self.indices} indices of the plan; upper bounds)"


def cost(plan: Plan, probes: ProbeTerms) -> Cost:
    """Sums over the first 1,000 indices, scaled to an hour by their own span."""
    geometry = plan.spec.geometry
    prompts = prefill = decode = states = probed = longest = peak = 0
    window: deque[int] = deque()
    last_us = 1
    for items in islice(plan.walk(), _SAMPLE):
        before = 0
        for item in items:
            last_us = max(last_us, item.at_us)
            for prompt in item.prompts:
                length = prompt.length + (0 if item.parent is None else before)
                prompts += 1
                prefill += length
                decode += item.max_new_tokens
                longest = max(longest, length + item.max_new_tokens)
                states += -(-length // geometry.chunk) + 1
                probed += length + (item.max_new_tokens if item.step == 0 else 0)
                if item.step == 0:
                    window.append(item.at_us)
            before = item.prompts[0].length + item.max_new_tokens
        while window and window[0] < last_us - 1_000_000:
            window.popleft()
        peak = max(peak, len(window))
    hours = last_us / 3.6e9
    mean_victim = probed / prompts
    # locate and warm prefill the tail; cold all of it; a control writes the prefix and scores the tail
    per_probe = 2 * probes.tail + (mean_victim + probes.tail) + (mean_victim + probes.tail)
    per_minute = 60 * probes.rate
    if probes.prefill_share is not None and probes.prefill_share < 1:
        earned = prefill / hours / 60 * probes.prefill_share / (1 - probes.prefill_share)
        per_minute = min(per_minute, earned / per_probe)
    if probes.pool_share_per_minute is not None and geometry.max_total_tokens is not None:
        pool = probes.pool_share_per_minute * geometry.max_total_tokens
        per_minute = min(per_minute, pool / per_probe)
    return Cost(
        indices=_SAMPLE,
        prompts=prompts / hours,
        prefill_tokens=prefill / hours,
        decode_tokens=decode / hours,
        longest=longest,
        peak_starts=peak,
        cache_tokens=(prefill + decode) / hours + 60 * per_minute * per_probe,
        state_slots=(states / hours + 60 * per_minute * 4) if geometry.hybrid else None,
        tokens_per_probe=per_probe,
        probes_per_minute=per_minute,
        minutes_to_calibrate=probes.controls_needed / per_minute,
    )
