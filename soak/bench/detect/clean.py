"""Clean servers: false alarms of every rule, the run length that was measured, and servers that drift."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from soak.bench.detect.grading import Grader, Watched, scores_of
from soak.bench.detect.records import Probe
from soak.bench.detect.resample import BLOCK
from soak.bench.detect.rules import PUBLIC_SAMPLES, PUBLIC_THRESHOLDS, Cusum
from soak.detect.calibration import Bounds, magnitude
from soak.detect.ceilings import ceilings_over
from soak.detect.edetector import SHARES, advance_all
from soak.detect.evidence import ABSOLUTE_WEIGHT, MAGNITUDE_WEIGHT, log_e_values
from soak.oracle.amnesia import CEILING_DENOMINATOR
from soak.plan.words import Draw

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """What went off over ``probes`` clean probes. alarms: of the detectors, by channel; public: groups of 16
    over each threshold of the public rule; cusum: times that a CUSUM, started afresh each time, went off;
    over_ceiling: probes over a ceiling, by ceiling; amnesia_asked: probes on which that ceiling was applied;
    largest_group: the largest mean k3 of a group of 16.
    """

    probes: int
    alarms: dict[str, int]
    public: tuple[int, ...]
    cusum: int
    over_ceiling: dict[str, int]
    amnesia_asked: int
    largest_group: float


def false_alarms(grader: Grader, probes: Sequence[Probe], cusum: Cusum | None) -> FalseAlarms:
    """Show all of these to one detector, and to the other rules. An alarm is acknowledged and counted."""
    watched = Watched(grader.fresh())
    for probe in probes:
        watched.show(probe)
        for alarm in watched.detector.alarms:
            watched.detector.acknowledge(alarm)
    valid = [p for p in probes if p.result.valid]
    k3 = np.array([p.k3 for p in valid])
    groups = k3[: len(k3) // PUBLIC_SAMPLES * PUBLIC_SAMPLES].reshape(-1, PUBLIC_SAMPLES).mean(axis=1)
    over = Counter(ceiling for p in valid for ceiling in ceilings_over(p.result))
    asked = sum(
        p.result.amnesia is not None and p.result.amnesia.denominator >= CEILING_DENOMINATOR for p in valid
    )
    return FalseAlarms(
        probes=watched.counted,
        alarms=dict(Counter(alarm.channel for _, alarm in watched.alarms)),
        public=tuple(int(np.count_nonzero(groups > threshold)) for threshold in PUBLIC_THRESHOLDS),
        cusum=0 if cusum is None else _times(cusum, list(scores_of(valid))),
        over_ceiling=dict(over),
        amnesia_asked=asked,
        largest_group=float(groups.max()) if groups.size else 0.0,
    )


def _times(cusum: Cusum, scores: list[float]) -> int:
    """How often a rule goes off that starts afresh after each alarm."""
    times = start = 0
    while (at := cusum.first_alarm(scores[start:])) is not None:
        times, start = times + 1, start + at
    return times


@dataclass(frozen=True, slots=True)
class RunLength:
    """Measured at a run length that a bench can wait for. mean: probes to a false alarm of the evidence
    channels, runs that had none counted with all their probes, so it is at least this.
    """

    guaranteed: float
    runs: int
    steps: int
    alarms: int
    mean: float


def measured_run_length(
    runs: Sequence[Sequence[Probe]],
    bounds: Mapping[str, Bounds],
    guaranteed: float,
    *,
    repeats: int,
    steps: int,
) -> RunLength:
    """The evidence channels on many bootstrapped records at once, by the detectors' own arithmetic."""
    valid = [[p for p in run if p.result.valid and p.result.kind.value in bounds] for run in runs]
    flat = [p for run in valid for p in run]
    starts = np.cumsum([0, *(len(run) for run in valid)])
    names = sorted({p.result.stream for p in flat})
    stream = np.array([names.index(p.result.stream) for p in flat])
    log_e = np.array([log_e_values(score_of(p), bounds[p.result.kind.value]) for p in flat])
    weights = np.log(np.repeat([ABSOLUTE_WEIGHT, MAGNITUDE_WEIGHT], len(SHARES)) / len(SHARES))
    drawn = np.array(
        [_places(starts, steps, Draw(int(guaranteed), "bench-run-length", i)) for i in range(repeats)]
    )
    log_m = np.full((repeats, len(names), weights.size), -np.inf)
    every = np.arange(repeats)
    lengths = np.full(repeats, float(steps))
    running = np.ones(repeats, dtype=bool)
    for step in range(steps):
        place = drawn[:, step]
        log_m[every, stream[place]] = advance_all(log_m[every, stream[place]], log_e[place])
        total = np.logaddexp.reduce((log_m + weights).reshape(repeats, -1), axis=1)
        over = running & (total >= math.log(guaranteed))
        lengths[over] = step + 1
        running &= ~over
    return RunLength(guaranteed, repeats, steps, int(np.count_nonzero(~running)), float(lengths.mean()))


def _places(starts: npt.NDArray[np.int64], steps: int, draw: Draw) -> npt.NDArray[np.int64]:
    """Indices of ``steps`` probes, in blocks of one run each."""
    blocks: list[npt.NDArray[np.int64]] = []
    for _ in range(-(-steps // BLOCK)):
        run = draw.below(len(starts) - 1)
        length = int(starts[run + 1] - starts[run])
        first = int(starts[run]) + draw.below(max(1, length - BLOCK + 1))
        blocks.append(np.arange(first, first + BLOCK).clip(max=int(starts[run + 1]) - 1))
    return np.concatenate(blocks)[:steps]


def score_of(probe: Probe) -> float:
    """The score of a valid probe."""
    divergence = probe.result.divergence
    if divergence is None:
        raise ValueError(f"probe {probe.result.number} is not valid")
    return divergence.score


@dataclass(frozen=True, slots=True)
class Drift:
    """A clean server that changed under way. exceeded, mean: of all its probes, share over tau and mean of
    the score as a share of the largest; p0, m0: what they were bounded by, the largest over kinds. late: the
    share over tau in the last quarter.
    """

    name: str
    probes: int
    exceeded: float
    late: float
    p0: float
    mean: float
    m0: float
    alarms: dict[str, int]

    @property
    def bound_crossed(self) -> bool:
        """Whether its probes were outside what the guarantee is for, as far as can be told from them."""
        return max(self.exceeded, self.late) > self.p0 or self.mean > self.m0


def drift(name: str, grader: Grader, runs: Sequence[Sequence[Probe]], bounds: Mapping[str, Bounds]) -> Drift:
    """Show each run to a detector, and compare its probes with the bounds in force."""
    alarms: Counter[str] = Counter()
    exceeds: list[list[bool]] = []
    sizes: list[float] = []
    for run in runs:
        alarms.update(grader.run(run).alarms)
        judged = [p for p in run if p.result.valid and p.result.kind.value in bounds]
        exceeds.append([score_of(p) > bounds[p.result.kind.value].tau for p in judged])
        sizes += [magnitude(score_of(p)) for p in judged]
    late = [x for run in exceeds for x in run[-(len(run) // 4) :]]
    return Drift(
        name=name,
        probes=len(sizes),
        exceeded=float(np.mean([x for run in exceeds for x in run])),
        late=float(np.mean(late)),
        p0=max(held.p0 for held in bounds.values()),
        mean=float(np.mean(sizes)),
        m0=max(held.m0 for held in bounds.values()),
        alarms=dict(alarms),
    )
