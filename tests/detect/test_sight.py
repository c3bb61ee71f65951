"""What a calibration can see, against the detectors' own arithmetic at work on made-up probes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.detect.calibration import Bounds
from soak.detect.detector import Detector
from soak.detect.edetector import SHARES
from soak.detect.settings import DetectSettings
from soak.detect.sight import SOON, share_seen, share_seen_soon, share_seen_within
from soak.detect.statement import KindGuarantee, guarantee
from tests.detect.many_runs import Array, Indices, coins, run_lengths
from tests.detect.synthetic import calibrate, probe

BAR = 1e6
SMOKE = Bounds(tau=6e-4, p0=0.197, m0=0.245, controls=72)
NIGHTLY = Bounds(tau=1e-3, p0=0.01, m0=0.0131, controls=1570)


def probes_to_alarm(bounds: Bounds, share: float, loud: bool, steps: int, runs: int = 60) -> Array:
    """One stream; spoiled probes are over tau, and as loud as can be or not loud at all."""

    def draw(step: int, evidence: Array, rng: np.random.Generator) -> tuple[Array, Array, Indices]:
        spoiled = coins(rng, len(evidence), share)
        return spoiled, spoiled * loud, np.zeros(spoiled.size, dtype=np.intp)

    return run_lengths(draw, bounds.p0, bounds.m0, BAR, runs=runs, streams=1, steps=steps, seed=60)


@pytest.mark.parametrize("bounds", [SMOKE, NIGHTLY], ids=["0.2", "0.01"])
def test_under_the_share_that_can_be_seen_nothing_is_seen_however_loud(bounds: Bounds) -> None:
    assert (probes_to_alarm(bounds, 0.8 * share_seen(bounds), loud=True, steps=10_000) == 10_000).all()


@pytest.mark.parametrize("bounds", [SMOKE, NIGHTLY], ids=["0.2", "0.01"])
def test_at_the_share_for_a_soon_alarm_it_comes_about_then(bounds: Bounds) -> None:
    median = float(np.median(probes_to_alarm(bounds, share_seen_soon(bounds, math.log(BAR)), False, 1500)))
    assert 0.6 * SOON <= median <= 1.2 * SOON


def test_magnitude_does_not_see_rarer_faults_than_exceedances_do() -> None:
    """At a p0 of 0.2 it is blind where the absolute channel is, and to every fault of less than its m0."""
    assert share_seen(SMOKE) == share_seen_within(math.inf, SMOKE.p0, 0.0, 1.0)
    assert share_seen_within(math.inf, SMOKE.m0, 0.0, 1.0) > SMOKE.m0 > share_seen(SMOKE)


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-4, 0.9), st.floats(10, 1e5), st.floats(3, 40))
def test_between_blind_and_soon(bound: float, probes: float, log_bar: float) -> None:
    blind = share_seen_within(math.inf, bound, 0.0, 1.0)
    soon = share_seen_within(probes, bound, log_bar, 0.16)
    assert bound < blind < 1.0
    assert blind < soon
    assert soon > share_seen_within(2 * probes, bound, log_bar, 0.16)
    gains = [blind * math.log1p(s * (1 - bound) / bound) + (1 - blind) * math.log1p(-s) for s in SHARES]
    assert max(gains) == pytest.approx(0.0, abs=1e-12)


def test_the_report_says_it_and_the_statement_does_in_words() -> None:
    detector = Detector(DetectSettings(p0_max=0.2))
    assert "spoils enough" not in detector.report().statement
    calibrate(detector, [1e-4, 2e-4, 3e-4])
    detector.observe(probe(1))
    (kind,) = detector.report().kinds
    assert kind.m0 is not None
    assert kind.share_seen is not None
    assert kind.p0 is not None
    assert kind.p0 < kind.share_seen < 0.25
    words = detector.report().statement
    shown = math.ceil(100 * kind.share_seen)
    assert f"(prefill: {shown}%, " in words
    assert f"within about {SOON} probes" in words


def test_a_share_that_is_over_all_is_said_so() -> None:
    bounds = Bounds(1e-3, 0.99, 0.99, 10)
    assert share_seen_soon(bounds, math.log(1e12)) > 1.0
    words = guarantee(DetectSettings(run_length=1e12), [KindGuarantee("decode", False, bounds, None)])
    assert "no share is seen within 200 probes" in words
