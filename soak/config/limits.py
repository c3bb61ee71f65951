"""The sections ``budget``, ``stop`` and ``thresholds``: what a run may cost, and what it must meet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from soak.config.values import Seconds, Section, Share


class Budget(Section):
    """What a run may cost. null lifts a limit."""

    in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most requests unanswered at once. Must be stated off loopback."""
    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """Most prompt and output tokens a second, probes included. Must be stated off loopback."""
    probe_share: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Most of our own prefill tokens that probes may take."""
    pool_share_per_minute: Annotated[float, Field(gt=0, le=100)] | None = None
    """Share of the server's pools that probes may fill a minute. Unset: 0.5; 0.02 beside other users."""


class Stop(Section):
    """Limits past which load backs off, whatever the plan wants."""

    queue: Annotated[int, Field(ge=1)] = 64
    """Most requests in the server's queue."""
    token_usage: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Most of the token pool in use."""
    ttft: Seconds = 30.0
    """Longest time to first token."""
    lost_after: Seconds = 30.0
    """How long the server may not answer before the run ends with exit code 4."""


class Thresholds(Section):
    """What the load itself must meet, or the run exits 5. null: not asked."""

    delivered_share: Share = 0.95
    """Least share of the prompts that were due that must have been sent."""
    error_share: Share = 0.01
    """Most of the answered prompts that may have failed."""
    ttft_p99: Seconds | None = None
    """Longest 99th percentile of the time to first token, from the intended start."""
    latency_p99: Seconds | None = None
    """Longest 99th percentile of the latency, from the intended start."""
