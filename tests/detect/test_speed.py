"""How fast: probes until an alarm, and microseconds per probe. docs/detection.md quotes the tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm
from tests.detect.many_runs import Array, Indices, coins, run_lengths
from tests.detect.synthetic import ask_and_observe, calibrate, probe

Probes = tuple[Array, Array, Indices]


def probes_to_alarm(share: float, p0: float, run_length: float, runs: int, healthy: float = 0.0) -> Array:
    """One stream; corrupt probes exceed tau but are of no great size, healthy ones exceed it by chance."""

    def draw(step: int, evidence: Array, rng: np.random.Generator) -> Probes:
        chance = share + (1 - share) * healthy
        exceeds = coins(rng, len(evidence), chance)
        return exceeds, np.zeros(exceeds.size), np.zeros(exceeds.size, dtype=np.intp)

    return run_lengths(draw, p0, 0.02, run_length, runs=runs, streams=1, steps=20_000, seed=40)


def test_one_probe_in_ten_is_found_within_two_hundred() -> None:
    assert np.median(probes_to_alarm(0.1, 0.01, 1e6, 100)) <= 200


def test_every_probe_corrupt_is_found_within_a_handful() -> None:
    assert probes_to_alarm(1.0, 0.01, 1e6, 10).max() <= 5
    assert probes_to_alarm(1.0, 0.2, 1e6, 10).max() <= 12


@pytest.mark.slow
def test_table_of_probes_to_an_alarm() -> None:
    shares = (0.01, 0.03, 0.1, 0.5, 1.0)
    print(
        "\np0, A: mean (90th percentile) probes to the alarm at a corrupt share of "
        + ", ".join(map(str, shares))
    )
    for p0 in (1e-3, 1e-2, 5e-2, 0.2):
        cells = []
        for share in shares:
            lengths = probes_to_alarm(share, p0, 1e6, 200)
            most = np.quantile(lengths, 0.9)
            cells.append("-" if most >= 20_000 else f"{lengths.mean():.0f} ({most:.0f})")
        print(f"{p0:g}, 1e6: " + " | ".join(cells))


PROBES = 4000


def timed(work: Callable[[], object]) -> float:
    """Seconds of CPU."""
    started = time.process_time()
    work()
    return time.process_time() - started


def yardsticks(count: int = 200) -> None:
    """Five hundred logarithms each: about 50 microseconds of this interpreter on a core of 2024."""
    for _ in range(count):
        for n in range(500):
            math.log1p(n * 1e-3)


def detection(sigma: float = 0.5) -> tuple[Callable[[], None], list[Alarm]]:
    """A calibrated detector's part in ``PROBES`` probes over 48 streams, and the alarms it raised."""
    detector = Detector(DetectSettings(p0_max=0.01))
    rng = np.random.default_rng(41)
    calibrate(detector, rng.lognormal(-9.0, sigma, 4000).tolist())
    results = [
        probe(n, float(score), shape=f"shape-{n % 8}", boundary=2 ** (6 + n % 6))
        for n, score in enumerate(rng.lognormal(-9.0, sigma, PROBES))
    ]
    alarms: list[Alarm] = []

    def work() -> None:
        for result in results:
            detector.wants_repeat(result)
            alarms.extend(detector.observe(result))

    return work, alarms


def test_detection_costs_a_probe_less_than_five_hundred_logarithms() -> None:
    """Both are timed turn by turn in one process, and the quickest turn of each counts."""
    work, alarms = detection()
    turns = []
    for _ in range(5):
        per_probe = timed(work) / PROBES
        yardstick = timed(yardsticks) / 200
        turns.append((per_probe, yardstick))
    assert not alarms
    assert min(p for p, _ in turns) < min(y for _, y in turns)


@pytest.mark.slow
def test_microseconds_per_probe() -> None:
    work, _ = detection()
    best = min(timed(work) / PROBES * 1e6 for _ in range(9))
    print(f"\n{best:.1f} microseconds of CPU per probe (wants_repeat and observe), 48 streams")
    assert best < 50.0


@pytest.mark.slow
def test_picture_of_evidence() -> None:
    """Forty healthy probes, then one in ten corrupt: the picture in docs/detection.md."""
    detector = Detector(DetectSettings(p0_max=0.01))
    rng = np.random.default_rng(43)
    calibrate(detector, rng.lognormal(-9.0, 0.5, 4000).tolist())
    print(f"\nbar: ln A = {detector.report().log_bar:.1f}")
    found = 0
    for number in range(1, 401):
        bad = number > 40 and rng.random() < 0.1
        score = 5e-3 if bad else float(rng.lognormal(-9.0, 0.5))
        alarms = ask_and_observe(detector, probe(number, score), score)
        evidence = detector.report().log_sum
        assert evidence is not None
        if bad or number % 20 == 0 or alarms:
            mark = " corrupt probe" * bad + ", ALARM" * bool(alarms)
            print(f"{number:4d} {evidence:5.1f} {'#' * round(3 * max(0.0, evidence)):<42}{mark}")
        if alarms:
            found = number
            break
    assert found
