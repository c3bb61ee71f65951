"""The sections ``budget``, ``stop`` and ``thresholds``: what a run may cost, and what it must meet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from soak.config.values import Seconds, Section, Share


class Budget(Section):
    """What a run may cost. null lifts a limit.

    Off loopback in_flight and tokens_per_second must be stated.
    """

    in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    probe_share: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    pool_share_per_minute: Annotated[float, Field(gt=0, le=100)] | None = None


class Stop(Section):
    """Limits past which load backs off, whatever the plan wants."""

    queue: Annotated[int, Field(ge=1)] = 64
    token_usage: Annotated[float, Field(gt=0, le=1)] = 0.99
    ttft: Seconds = 30.0
    lost_after: Seconds = 30.0


class Thresholds(Section):
    """What the load itself must meet, or the run exits 5. null: not asked."""

    delivered_share: Share = 0.95
    error_share: Share = 0.01
    ttft_p99: Seconds | None = None
    latency_p99: Seconds | None = None
