"""How much a run without load of its own plants: what its budget allows, and no more."""

from __future__ import annotations

from soak.plan.geometry import Geometry

PART = 0.25
"""Of the pool share a minute: what is planted. The rest is for probes."""

USUAL = 1024  # tokens that a planted prefix and its output take at most, if the config names no other length
_UNTOLD = 1 / 30  # planted a second where the server does not name its pool
_MOST = 5.0


def planted_per_second(geometry: Geometry, longest: int, share_per_minute: float | None) -> str:
    """Prefixes a second as a decimal string; even if all were ``longest`` they would keep to their part."""
    rate = _UNTOLD
    if share_per_minute is not None and geometry.max_total_tokens is not None:
        rate = PART * share_per_minute * geometry.max_total_tokens / 60 / longest
    return f"{max(1e-6, min(rate, _MOST)):.6f}"
