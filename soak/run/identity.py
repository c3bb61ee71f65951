"""Who a run is: its nonce, its id, and the file that lets somebody else plan the same items again."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from soak import __version__
from soak.plan.spec import PLAN_VERSION, ResolvedSpec


@dataclass(frozen=True, slots=True)
class Identity:
    """seed and resolved spec make the plan; the nonce salts its token ids."""

    seed: int
    nonce: int
    spec: ResolvedSpec

    @property
    def run_id(self) -> str:
        """Twelve hex digits, part of every rid of the run."""
        text = f"{self.seed}/{self.nonce}/{self.spec.digest()}"
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """What ``run.json`` holds."""
        return {
            "run_id": self.run_id,
            "seed": self.seed,
            "nonce": self.nonce,
            "plan_version": PLAN_VERSION,
            "spec_digest": self.spec.digest(),
            "spec": self.spec.as_dict(),
            "soak_version": __version__,
        }


def identify(seed: int, nonce: int | None, spec: ResolvedSpec) -> Identity:
    """A given nonce repeats a run's token ids; None draws a new one, so that no earlier run is hit."""
    return Identity(seed, secrets.randbits(62) if nonce is None else nonce, spec)
