"""The resolved spec: what a plan depends on, besides the seed. Config and geometry, once, as plain values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from soak.plan.geometry import Geometry

PLAN_VERSION = 2
"""Raised whenever the same (seed, spec, index) would give another item than before."""

DEFAULT_WEIGHTS = {"shared-prefix": 4, "long-context": 1, "chunked-burst": 2, "decode-seeded": 3}


@dataclass(frozen=True, slots=True)
class Adaptive:
    """What decisions may not go beyond. every: indices from one decision to the next; together: most indices
    that start at once; prompts: most that may be in flight."""

    every: int = 24
    together: int = 16
    prompts: int = 256


@dataclass(frozen=True, slots=True)
class ResolvedSpec:
    """Everything that shapes items. Lengths in tokens.

    rate: indices per second, a decimal string; weights: share of each shape, integers, in a fixed order;
    served_per_mille: share of load items that ask for logprobs (the served pass). tenants: cache namespaces
    of tenant-ping-pong; pressure: most prompts at once of the shapes that fill the pool. adaptive: where
    recorded decisions change the load, what they may not go beyond.
    """

    geometry: Geometry = field(default_factory=Geometry)
    arrivals: str = "poisson"
    rate: str = "2"
    weights: tuple[tuple[str, int], ...] = tuple(DEFAULT_WEIGHTS.items())
    max_context: int = 4096
    min_prompt: int = 64
    max_new_tokens: int = 32
    decode_tokens: int = 320
    burst: int = 6
    roots: int = 16
    zipf_churn: int = 64
    sampled_per_mille: int = 300
    served_per_mille: int = 50
    tenants: int = 3
    pressure: int = 32
    adaptive: Adaptive | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rare = {} if self.adaptive is None else {"adaptive": asdict(self.adaptive)}
        return {
            "plan_version": PLAN_VERSION,
            "geometry": self.geometry.as_dict(),
            "arrivals": self.arrivals,
            "rate": self.rate,
            "weights": {name: weight for name, weight in self.weights if weight},
            "max_context": self.max_context,
            "min_prompt": self.min_prompt,
            "max_new_tokens": self.max_new_tokens,
            "decode_tokens": self.decode_tokens,
            "burst": self.burst,
            "roots": self.roots,
            "zipf_churn": self.zipf_churn,
            "sampled_per_mille": self.sampled_per_mille,
            "served_per_mille": self.served_per_mille,
            "tenants": self.tenants,
            "pressure": self.pressure,
            **rare,
        }

    def digest(self) -> str:
        """Sixteen hex digits that name this spec."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
