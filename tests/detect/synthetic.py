"""Probe results with figures of one's choosing, for detectors that look at nothing else."""

from __future__ import annotations

import math
from itertools import count

from soak.detect.detector import Detector
from soak.detect.verdict import Alarm
from soak.oracle.amnesia import Amnesia
from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind


def divergence(
    score: float,
    tokens: int = 64,
    max_abs: float | None = None,
    first16: float | None = None,
    k1: float = 0.0,
) -> Divergence:
    """All tokens off by the same |d|, unless told otherwise."""
    size = math.sqrt(2.0 * score)
    return Divergence(
        tokens=tokens,
        k1=k1,
        k2=score,
        k3=score,
        max_abs=size if max_abs is None else max_abs,
        median_abs=size,
        first16_median_abs=size if first16 is None else first16,
        tail_share=float(size > 0.05),
        onset=int(size > 1e-5),
        score=score,
    )


def probe(
    number: int,
    score: float = 1e-4,
    shape: str = "shared-prefix",
    kind: ResumeKind = ResumeKind.PREFILL,
    boundary: int = 512,
    **given: object,
) -> ProbeResult:
    result = ProbeResult(
        number=number,
        shape=shape,
        kind=kind,
        outcome=ProbeOutcome.VALID,
        resume_boundary=boundary,
        divergence=divergence(score),
    )
    for name, value in given.items():
        setattr(result, name, value)
    return result


def lost(clipped: float, denominator: float = 10.0) -> Amnesia:
    return Amnesia(ratio=clipped, clipped=clipped, denominator=denominator, tokens=24)


def repeated(result: ProbeResult, pair: float, cold: float = 1e-6) -> ProbeResult:
    """As the caller does when asked: a second cold pass, and a second warm pass against it."""
    result.cold_repeat = result.confirmation_cold = divergence(cold)
    result.confirmation = divergence(pair)
    return result


def ask_and_observe(
    detector: Detector, result: ProbeResult, pair: float, cold: float = 1e-6
) -> tuple[Alarm, ...]:
    """Run the confirming pair if the detector wants one, then hand the probe in."""
    if detector.wants_repeat(result):
        repeated(result, pair, cold)
    return detector.observe(result)


def calibrate(
    detector: Detector, scores: list[float], kind: ResumeKind = ResumeKind.PREFILL, loaded: bool = True
) -> None:
    """Controls of these scores in turn until the kind is calibrated, and three repeated cold passes."""
    for _ in range(3):
        detector.add_cold_repeat(divergence(1e-6 * (not detector.settings.deterministic)), loaded)
    for i in count():
        if not detector.wants_control(kind):
            return
        assert i < 20_000
        detector.add_control(kind, divergence(scores[i % len(scores)]), loaded)
