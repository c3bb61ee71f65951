"""Recorded probes and calibrations with figures of one's choosing."""

from __future__ import annotations

import numpy as np

from soak.bench.detect.records import CalibrationRecord, ControlRecord, Probe
from soak.oracle.probe import ProbeOutcome, ResumeKind
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
