"""Recorded probes and calibrations with figures of one's choosing."""

from __future__ import annotations

import math

import numpy as np

from soak.bench.detect.clean import Drift, FalseAlarms, RunLength
from soak.bench.detect.grading import Quantiles
from soak.bench.detect.outcome import CleanOutcome, FaultOutcome, Judged, Outcome, Signal
from soak.bench.detect.records import CalibrationRecord, ControlRecord, Probe
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.sim.config import Numerics
from tests.detect.synthetic import divergence, lost, probe

QUIET = 1e-3


def recorded(
    number: int, score: float = QUIET, act: int = 0, together: bool = False, **given: object
) -> Probe:
    """A probe whose confirming pair shows the same again."""
    result = probe(number, score, **given)  # type: ignore[arg-type]
    result.cold_repeat = result.confirmation_cold = divergence(QUIET / 10)
    result.confirmation = divergence(score)
    return Probe(result, score, repeated=False, act=act, together=together)


def broken(number: int) -> Probe:
    """A probe that met a null logprob."""
    result = probe(number, outcome=ProbeOutcome.NON_FINITE, divergence=None, detail="a null")
    return Probe(result, float("nan"), repeated=False, act=0, together=True)


def full(number: int) -> Probe:
    """A probe with everything in it."""
    made = recorded(number, 0.2, amnesia=lost(0.5), control=divergence(1e-3), control_note="so so")
    return Probe(made.result, 0.3, repeated=True, act=4, together=True)


def calibration(controls: int = 60, seed: int = 0) -> CalibrationRecord:
    """Controls of a server with noise, half of them under load."""
    scores = QUIET * np.random.default_rng(seed).lognormal(0.0, 0.3, controls)
    return CalibrationRecord(
        controls=tuple(
            ControlRecord(ResumeKind.PREFILL, divergence(float(score)), bool(i % 2))
            for i, score in enumerate(scores)
        ),
        colds=tuple((divergence(QUIET / 2), bool(i % 2)) for i in range(6)),
        hard=0,
        refused={},
    )


def run_of(count: int, spoiled: int, score: float = 0.2, seed: int = 0) -> list[Probe]:
    """Every ``spoiled``-th probe is spoiled, none if 0; the others are noise."""
    noise = QUIET * np.random.default_rng(seed).lognormal(0.0, 0.3, count)
    return [
        recorded(
            i,
            score if spoiled and i % spoiled == 0 else float(noise[i - 1]),
            act=i,
            together=bool(spoiled and i % spoiled == 0),
        )
        for i in range(1, count + 1)
    ]


def judged(found: float = 1.0) -> Judged:
    """A fault found in a few probes, by some runs never."""
    some, never = Quantiles(4, math.inf, found), Quantiles(math.inf, math.inf, 0.0)
    return Judged(
        runs=2,
        alarm=some,
        corrupt=never,
        tokens=some,
        channels={"ceiling-onset": 2},
        at_calibration=(),
        controls=60,
        tau={"prefill": 2e-3},
        p0={"prefill": 0.01},
        public=(never, some),
        quiet=never,
        cusum=some,
    )


def outcome(found: float = 1.0, score: float = 0.1, share: float = 0.25) -> Outcome:
    """One fault, clean servers that did nothing wrong, and one drift."""
    signal = Signal(share=share, score=score, hard=0.0, together=0.5, apart=0.0)
    either: dict[Numerics, Judged] = {"exact": judged(), "production": judged(found)}
    fault = FaultOutcome("short-tail-chunk", "short-tail-chunk", "", 32, signal, 2e-3, either, judged())
    quiet = FalseAlarms(128, {}, (0, 1), 0, {"ceiling-onset": 1}, 3, 2e-3)
    clean = CleanOutcome({"prefill": 0.01}, (), quiet, quiet, (RunLength(300.0, 10, 3000, 4, 2000.0),))
    drifted = Drift("clean, slowly", 96, 0.0, 0.0, 0.01, 1e-3, 0.02, {})
    return Outcome((fault,), {"exact": clean, "production": clean}, (drifted,), 1e6, 2e-3)
