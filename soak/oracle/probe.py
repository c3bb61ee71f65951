"""What a probe came to: the seam between the oracle, the detectors, the metrics and the summary."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from soak.oracle.amnesia import Amnesia
from soak.oracle.coarsened import CoarsenedKL
from soak.oracle.divergence import Divergence
from soak.oracle.recall import Recall

Array = npt.NDArray[np.float64]


class ResumeKind(enum.StrEnum):
    """How the state that a probe resumed from came to be. Controls are of the same kind as their probe.

    An invariance probe has no resume in question: its kind is the way, other than cold in one request, by
    which the same ids were scored.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    HOST = "host"
    RETRACTED = "retracted"
    IN_STEPS = "in-steps"
    IN_A_BATCH = "in-a-batch"
    SHIFTED = "shifted"
    RECOMPUTED = "recomputed"
    DECODE_BATCH = "decode-batch"

    @property
    def controllable(self) -> bool:
        """Whether a control can copy its path: load-backs and retractions are not ours to bring about."""
        return self not in (ResumeKind.HOST, ResumeKind.RETRACTED)

    @property
    def invariance(self) -> bool:
        """Whether two ways to the same answer are compared, and no cache that load has written."""
        return self in PAIR_WORDS


PAIR_WORDS: Mapping[ResumeKind, str] = MappingProxyType(
    {
        ResumeKind.IN_STEPS: "the same ids, cold in one request and written in several shorter steps",
        ResumeKind.IN_A_BATCH: "the same ids, cold alone and cold in one request with others",
        ResumeKind.SHIFTED: "the same ids, cold in one request and with chunks that begin elsewhere",
        ResumeKind.RECOMPUTED: "the same ids, cold and once more after the server had evicted them",
        ResumeKind.DECODE_BATCH: "the same tokens, generated in one request with others and cold by prefill",
    }
)
"""The invariance pairs, each by what must agree."""

RESUMES = tuple(kind for kind in ResumeKind if not kind.invariance)
"""The kinds of ordinary probes."""


class ProbeOutcome(enum.StrEnum):
    """Valid, or the reason why a probe says nothing (it never counts as a pass), or a hard alarm."""

    VALID = "valid"
    EVICTED = "evicted"  # no hit: the victim was simply not cached any more
    COLD_HIT = "cold_hit"  # the cold side resumed from something: not cold
    BOUNDARY_MOVED = "boundary_moved"  # the warm pass resumed elsewhere than the locate request said
    ELSEWHERE = "elsewhere"  # another worker answered than the one whose cache is asked about
    TOO_SHORT = "too_short"  # nothing left to score after the resume boundary
    STILL_CACHED = "still_cached"  # an invariance pair that wanted an eviction, and there had been none
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
    budget or chance left them out. control_off: the control's own warm minus cold, by token. served: what
    the server returned while it generated the victim (decode path), against a cold prefill of the same
    tokens. control_note says why a wanted control is missing.
    coarsened: a lower bound of KL(cold || warm) where candidates were listed; it never enters the evidence.
    needle: how a fact that the victim holds was recalled, where it was asked for one.
    confirmation: the confirming pair, run when the first one looked bad; it never enters the evidence.
    worker: who answered, where a router or a data-parallel server says so.
    ways: of an invariance probe, how warm (the other way) and cold (in one request) were asked for, in words.
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
    control_off: Array = field(default_factory=lambda: np.empty(0))
    control_note: str = ""
    cold_repeat: Divergence | None = None
    amnesia: Amnesia | None = None
    served: Divergence | None = None
    confirmation: Divergence | None = None
    confirmation_cold: Divergence | None = None
    needle: Recall | None = None
    ways: str = ""
    worker: str = ""

    @property
    def valid(self) -> bool:
        """Whether the probe compared warm with cold."""
        return self.outcome is ProbeOutcome.VALID

    @property
    def stream(self) -> str:
        """The detector stream: shape, length bucket, the worker if it is known, and resume kind."""
        bucket = 1 << max(6, int(self.resume_boundary).bit_length())
        where = f"{bucket}@{self.worker}" if self.worker else f"{bucket}"
        return f"{self.shape}/{where}/{self.kind.value}"
