"""The run length to a false alarm, under nulls that keep their bounds and are nasty otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from soak.detect.detector import Detector
from soak.detect.evidence import Evidence
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Verdict
from tests.detect.many_runs import Array, Draw, Indices, coins, run_lengths
from tests.detect.synthetic import ask_and_observe, calibrate, divergence, probe

P0, M0 = 0.02, 0.01
STREAMS = 3

Probes = tuple[Array, Array, Indices]


def _loud(exceeds: Array, rng: np.random.Generator) -> Array:
    """Magnitudes with mean exactly M0, as heavy-tailed as [0, 1] allows: 1 or 0."""
    return exceeds * (rng.random(exceeds.size) < M0 / P0)


def _streams(evidence: Array, rng: np.random.Generator) -> Indices:
    return np.asarray(rng.integers(0, STREAMS, len(evidence)), dtype=np.intp)


def at_the_bounds(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
    exceeds = coins(rng, len(evidence), P0)
    return exceeds, _loud(exceeds, rng), _streams(evidence, rng)


def heavy_tails(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
    """Pareto scores with an infinite mean before they are clipped; tau their own quantile."""
    score = np.asarray(1e-4 / rng.random(len(evidence)), dtype=np.float64)  # P(score > s) = 1e-4 / s
    size = np.minimum(score, 1.0) * M0 / (1e-4 * (1 + np.log(1e4)))  # its mean is 1e-4 (1 + ln 1e4), made M0
    return (score > 1e-4 / P0).astype(float), np.minimum(size, 1.0), _streams(evidence, rng)


def ties(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
    """Almost every score equals tau, which is no exceedance; all sizes are m0 but for exceedances."""
    exceeds = coins(rng, len(evidence), P0)
    return exceeds, np.full(exceeds.size, M0), _streams(evidence, rng)


def bursts(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
    """Exceedances come in the first fifth of every hundred probes, all of them of one stream."""
    chance = P0 if step % 100 < 20 else 0.0
    exceeds = coins(rng, len(evidence), chance)
    stream = np.full(exceeds.size, (step // 100) % STREAMS, dtype=np.intp)
    return exceeds, _loud(exceeds, rng), stream


def drift(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
    """A server that gets noisier for as long as it runs, up to the bounds."""
    exceeds = coins(rng, len(evidence), P0 * min(1.0, step / 500))
    return exceeds, _loud(exceeds, rng), _streams(evidence, rng)


def adversary(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
    """Always the stream with the most evidence; at the bounds while ahead, quieter while behind."""
    stream = np.asarray(evidence.argmax(axis=1))
    ahead = evidence.max(axis=1) > np.log(3.0)
    exceeds = coins(rng, len(evidence), np.where(ahead | (step % 3 == 0), P0, 0.0))
    return exceeds, _loud(exceeds, rng), stream


NULLS = [at_the_bounds, heavy_tails, ties, bursts, drift, adversary]


@pytest.mark.parametrize("null", NULLS, ids=lambda null: null.__name__)
def test_false_alarms_are_at_least_a_run_length_apart(null: Draw) -> None:
    lengths = run_lengths(null, P0, M0, 100.0, runs=400, streams=STREAMS, steps=1500, seed=20)
    assert lengths.mean() >= 100.0


@pytest.mark.parametrize("chance", ["at the bound", "ties", "in spells", "drifting"])
def test_false_alarms_of_the_paired_sum_are_a_run_length_apart(chance: str) -> None:
    """Its own detector, by the scalar arithmetic that runs use: worse than the control at most this often."""
    share, asked, most = 0.62, 60.0, 600
    rng = np.random.default_rng(24)
    lengths = []
    for _ in range(150):
        evidence, length = Evidence(asked), most
        for step in range(most):
            likely = {
                "at the bound": share,
                "ties": 0.0 if step % 3 else share,
                "in spells": share if step % 40 < 25 else 0.1,
                "drifting": share * min(1.0, step / 100),
            }[chance]
            stream = f"shape-{step % STREAMS}/64/prefill"
            if evidence.take_pair(step, stream, rng.random() < likely, share) is not None:
                length = step + 1
                break
        lengths.append(length)
    assert np.mean(lengths) >= asked


@pytest.mark.slow
@pytest.mark.parametrize("null", NULLS, ids=lambda null: null.__name__)
def test_false_alarms_at_a_longer_run_length(null: Draw) -> None:
    asked = 5000.0
    lengths = run_lengths(null, P0, M0, asked, runs=200, streams=STREAMS, steps=30_000, seed=21)
    censored = float(np.mean(lengths == 30_000))
    print(
        f"\n{null.__name__}: at least {lengths.mean():.0f} probes to a false alarm, {asked:.0f} guaranteed; "
        f"{censored:.0%} of the runs had none in 30,000"
    )
    assert lengths.mean() >= asked


def test_a_null_outside_its_bounds_alarms() -> None:
    """The check above can fail: three times the exceedances, and the run length is gone."""

    def broken(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
        exceeds = coins(rng, len(evidence), 3 * P0)
        return exceeds, _loud(exceeds, rng), _streams(evidence, rng)

    assert run_lengths(broken, P0, M0, 1000.0, runs=100, streams=STREAMS, steps=1500, seed=22).mean() < 500.0


def clean_server(probes: int, seed: int, sigma: float) -> None:
    """Log-normal scores that come in bursts of some ten probes, which is outside the letter of the null.

    What is heavy in their tail are single tokens far off, as on real servers, so the onset's median is small.
    """
    rng = np.random.default_rng(seed)
    detector = Detector(DetectSettings(p0_max=0.01))
    calibrate(detector, rng.lognormal(-9.0, sigma, 4000).tolist())
    mood = 0.0
    for number in range(probes):
        mood = 0.9 * mood + np.sqrt(1 - 0.81) * rng.normal()
        score = min(float(np.exp(-9.0 + sigma * mood)), 0.5)
        result = probe(number, score, shape=("shared-prefix", "long-context")[number % 2])
        result.divergence = divergence(score, first16=0.01)
        assert ask_and_observe(detector, result, score) == ()
    assert detector.report().verdict is Verdict.CLEAN


def test_a_clean_server_stays_clean() -> None:
    clean_server(4000, 31, 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_a_clean_server_stays_clean_for_fifty_thousand_probes(sigma: float) -> None:
    clean_server(50_000, 32, sigma)
