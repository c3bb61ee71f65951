"""What a probe came to: the seam between the oracle, the detectors, the metrics and the summary."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from soak.oracle.amnesia import Amnesia
from soak.oracle.coarsened import CoarsenedKL
from soak.oracle.divergence import Divergence

Array = npt.NDArray[np.float64]


class ResumeKind(enum.StrEnum):
    """How the state that a probe resumed from came to be. Controls are of the same kind as their probe."""

    PREFILL = "prefill"
    DECODE = "decode"
    HOST = "host"
    RETRACTED = "retracted"

    @property
    def controllable(self) -> bool:
        """Whether a control can copy its path: load-backs and retractions are not ours to bring about."""
        return self in (ResumeKind.PREFILL, ResumeKind.DECODE)


class ProbeOutcome(enum.StrEnum):
    """Valid, or the reason why a probe says nothing (it never counts as a pass), or a hard alarm."""

    VALID = "valid"
    EVICTED = "evicted"  # no hit: the victim was simply not cached any more
    COLD_HIT = "cold_hit"  # the cold side resumed from something: not cold
    BOUNDARY_MOVED = "boundary_moved"  # the warm pass resumed elsewhere than the locate request said
    TOO_SHORT = "too_short"  # nothing left to score after the resume boundary
    REQUEST_FAILED = "request_failed"  # a pass was rejected, timed out, cut off, ...
    NON_FINITE = "non_finite"  # null logprob: NaN or infinity on the server. A hard alarm
    BROKEN_INVARIANT = "broken_invariant"  # lengths that do not add up. A hard alarm

    @property
    def hard_alarm(self) -> bool:
        """Whether this outcome is an alarm of its own, whatever the statistics say."""
        return self in (ProbeOutcome.NON_FINITE, ProbeOutcome.BROKEN_INVARIANT)


@dataclass(slots=True)
class ProbeResult:
    """One probe. Per-token arrays have shape (T,), T tokens scored from one past the resume boundary K.

    victim_index, victim_step, victim_part: the planned prompt that wrote the prefix. victim_age_s: since the
    victim was written; victim_tokens: its length. control, cold_repeat: divergence of
    the control pass and of a second cold pass, each against the cold pass of the same ids; None when the
    budget or chance left them out. served: what the server returned while it generated the victim (decode
    path), against a cold prefill of the same tokens. control_note says why a wanted control is missing.
    coarsened: a lower bound of KL(cold || warm) where candidates were listed; it never enters the evidence.
    confirmation: the confirming pair, run when the first one looked bad; it never enters the evidence.
    """

    number: int
    shape: str
    kind: ResumeKind
    outcome: ProbeOutcome
    detail: str = ""
    victim_index: int = -1
    victim_step: int = 0
    victim_part: int = 0
    victim_age_s: float = 0.0
    victim_tokens: int = 0
    started_s: float = 0.0
    seconds: float = 0.0
    under_load: bool = False
    resume_boundary: int = 0
    tokens_spent: int = 0
    warm: Array = field(default_factory=lambda: np.empty(0))
    cold: Array = field(default_factory=lambda: np.empty(0))
    divergence: Divergence | None = None
    coarsened: CoarsenedKL | None = None
    control: Divergence | None = None
    control_note: str = ""
    cold_repeat: Divergence | None = None
    amnesia: Amnesia | None = None
    served: Divergence | None = None
    confirmation: Divergence | None = None
    confirmation_cold: Divergence | None = None

    @property
    def valid(self) -> bool:
        """Whether the probe compared warm with cold."""
        return self.outcome is ProbeOutcome.VALID

    @property
    def stream(self) -> str:
        """The detector stream: shape, length bucket and resume kind."""
        bucket = 1 << max(6, int(self.resume_boundary).bit_length())
        return f"{self.shape}/{bucket}/{self.kind.value}"
