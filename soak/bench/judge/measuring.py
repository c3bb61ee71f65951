"""Divergence of many pairs of passes at once and one by one, and the detectors on what they come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.oracle.divergence import Array, Divergence, diverge, diverge_many
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind

PROBES, TOKENS = 10_000, 256
_AT_ONCE = 100  # rows: what they take stays in the processor's cache
_SHAPES = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Judged:
    """Seconds of CPU for all probes, the quickest of the rounds: together_s vectorised, one_by_one_s as a run
    compares them, detect_s in the detectors."""

    probes: int
    tokens: int
    together_s: float
    one_by_one_s: float
    detect_s: float

    @property
    def total_s(self) -> float:
        """Vectorised divergence, and detection."""
        return self.together_s + self.detect_s


def measure(probes: int = PROBES, tokens: int = TOKENS, rounds: int = 3) -> Judged:
    """Healthy probes of a server in tolerance mode, over 48 streams of one calibrated kind."""
    rng = np.random.default_rng(0)
    cold = -rng.exponential(2.0, (probes, tokens))
    warm = cold + rng.normal(0.0, 0.01, cold.shape)
    timed = []
    for _ in range(rounds):
        together, seen = _timed(lambda: list(_together(warm, cold)))
        one_by_one, same = _timed(lambda: [diverge(w, c) for w, c in zip(warm, cold, strict=True)])
        if seen != same:
            raise RuntimeError("the two ways to the divergence disagree")
        detector = _calibrated(seen)
        results = [_result(number, each) for number, each in enumerate(seen)]
        detect, _ = _timed(lambda: _judge(detector, results))  # noqa: B023 - called at once
        timed.append((together, one_by_one, detect))
    return Judged(probes, tokens, *(min(each) for each in zip(*timed, strict=True)))


def _timed(work: Callable[[], _T]) -> tuple[float, _T]:
    began = time.thread_time()
    done = work()
    return time.thread_time() - began, done


def _together(warm: Array, cold: Array) -> Iterator[Divergence]:
    for at in range(0, len(warm), _AT_ONCE):
        yield from diverge_many(warm[at : at + _AT_ONCE], cold[at : at + _AT_ONCE])


def _calibrated(controls: list[Divergence]) -> Detector:
    detector = Detector(DetectSettings(p0_max=0.01))
    for control in controls:
        if not detector.wants_control(ResumeKind.PREFILL):
            break
        detector.add_control(ResumeKind.PREFILL, control, True)
    return detector


def _result(number: int, seen: Divergence) -> ProbeResult:
    return ProbeResult(
        number=number,
        shape=f"shape-{number % _SHAPES}",
        kind=ResumeKind.PREFILL,
        outcome=ProbeOutcome.VALID,
        resume_boundary=64 << (number // _SHAPES % 6),
        divergence=seen,
    )


def _judge(detector: Detector, results: list[ProbeResult]) -> None:
    for result in results:
        detector.wants_repeat(result)
        detector.observe(result)
    detector.report()
