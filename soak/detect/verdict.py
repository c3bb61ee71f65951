"""The verdict, its exit code, and what a report of the detectors consists of. Plain data, no arithmetic."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Verdict(enum.StrEnum):
    """What soak says of a server's cache."""

    CALIBRATING = "CALIBRATING"  # too few controls to say what is normal here
    CLEAN = "CLEAN"
    SUSPECT = "SUSPECT"  # something is off that does not prove corruption
    CORRUPT = "CORRUPT"
    VACUOUS = "VACUOUS"  # nothing bad was seen, and what must be reached was not


@dataclass(frozen=True, slots=True)
class Alarm:
    """One reason to say SUSPECT or CORRUPT. ``evidence`` is in words with figures; ``probes`` are numbers."""

    verdict: Verdict
    channel: (
        str  # exact, absolute, declared-bound, ceiling-amnesia, ceiling-onset, control-floor, non-finite, ...
    )
    stream: str
    shape: str
    evidence: str
    probes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KindCalibration:
    """Where the calibration of one resume kind stands."""

    kind: str
    controls: int
    controls_needed: int
    ready: bool
    mode: str  # exact | tolerance | calibrating
    threshold: float | None = None  # tau: score over which a probe counts as an exceedance
    p0: float | None = None  # upper confidence bound on a healthy probe's exceedance
    m0: float | None = None  # the same on its mean score, as a share of the largest score there is
    share_seen: float | None = None  # of a stream's probes that a fault must spoil, or evidence never grows
    control_floor: float | None = None  # median score of controls
    cold_floor: float | None = None  # median score of repeated cold passes
    note: str = ""


@dataclass(frozen=True, slots=True)
class DetectorReport:
    """All that the detectors have to say at one moment.

    verdict: CALIBRATING, CLEAN, SUSPECT or CORRUPT (coverage is not the detectors' business). log_evidence:
    by stream, the natural log of its evidence; streams of kinds not yet calibrated are missing. log_bar: of
    the bar that log_sum, of all streams together, would have to reach. log_sum_paired: of the paired channel,
    which has a sum of its own against the same bar. log_channels: by stream and channel (absolute, magnitude,
    paired). statement: the guarantee in force, in words that are true.
    """

    verdict: Verdict
    alarms: tuple[Alarm, ...] = ()
    kinds: tuple[KindCalibration, ...] = ()
    log_evidence: dict[str, float] = field(default_factory=dict)
    log_bar: float = 0.0
    log_sum: float | None = None  # None before any probe was evidence
    log_sum_paired: float | None = None
    log_channels: dict[str, dict[str, float]] = field(default_factory=dict)
    statement: str = ""
    reasons: tuple[str, ...] = ()
