"""All figures of one bench, from its records. Nothing is recorded here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from soak.bench.detect.clean import (
    Drift,
    FalseAlarms,
    RunLength,
    drift,
    false_alarms,
    measured_run_length,
    score_of,
)
from soak.bench.detect.grading import Grader, Quantiles, quantiles
from soak.bench.detect.library import NUMERICS, Library
from soak.bench.detect.records import Probe
from soak.bench.detect.resample import bootstrap, made_rare
from soak.bench.detect.rules import Cusum, public_rule
from soak.bench.detect.scenes import CLEAN, CLEAN_SCENE, DRIFTS, SCENES, Scene
from soak.detect.calibration import Bounds
from soak.sim.config import Numerics

BOOTSTRAPPED = 50_000
RUN_LENGTHS = (300.0, 3000.0)

RARE = 0.05
"""Share of probes that are spoiled in the records that were made rare."""

RARE_PROBES = 3000


@dataclass(frozen=True, slots=True)
class Signal:
    """Ground truth, from the runs with exact numerics, where a healthy probe differs by nothing at all.

    share: of valid probes that are spoiled; score: their median score; hard: share of all probes whose answer
    was no number; together, apart: share of spoiled or hard ones in acts that brought the conditions
    together, and in the others.
    """

    share: float
    score: float
    hard: float
    together: float
    apart: float


@dataclass(frozen=True, slots=True)
class Judged:
    """One fault on servers of one kind of numerics. alarm, corrupt: probes until the first alarm, SUSPECT or
    CORRUPT, and until CORRUPT; p0, tau: of the resume kinds in tolerance mode; at_calibration: alarms that
    its controls raised before any probe.
    """

    runs: int
    alarm: Quantiles
    corrupt: Quantiles
    tokens: Quantiles
    channels: dict[str, int]
    at_calibration: tuple[str, ...]
    controls: int
    tau: dict[str, float]
    p0: dict[str, float]
    public: tuple[Quantiles, ...]
    quiet: Quantiles
    cusum: Quantiles


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """One scene. floor: the clean server's largest tau; rare: the same made rare, on servers with production
    numerics, None for a fault that shows without its conditions too, or never.
    """

    scene: str
    fault: str
    unseen: str
    recorded: int
    signal: Signal
    floor: float
    judged: dict[Numerics, Judged]
    rare: Judged | None

    @property
    def over_floor(self) -> bool:
        """Whether a spoiled probe's score is over what healthy controls do, or it is no number at all."""
        return self.signal.hard > 0 or self.signal.score > self.floor


@dataclass(frozen=True, slots=True)
class CleanOutcome:
    """A clean server: what went off in calibration, over the recorded probes, and over the extended ones."""

    p0: dict[str, float]
    at_calibration: tuple[str, ...]
    recorded: FalseAlarms
    extended: FalseAlarms
    run_lengths: tuple[RunLength, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything."""

    faults: tuple[FaultOutcome, ...]
    clean: dict[Numerics, CleanOutcome]
    drifts: tuple[Drift, ...]
    run_length: float
    quiet_threshold: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number of probes that no run reached is null."""
        return _plain(asdict(self))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def outcome(library: Library, bootstrapped: int = BOOTSTRAPPED, rare_probes: int = RARE_PROBES) -> Outcome:
    """Grade all that a plan has recorded. Raises LookupError for what is missing."""
    plan = library.plan
    clean = {numerics: _clean(library, numerics, bootstrapped) for numerics in NUMERICS}
    quiet = clean["production"].extended.largest_group
    grader = Grader(library.calibration(CLEAN, "production"), plan.detect(CLEAN_SCENE, "production"))
    bounds = bounds_of(grader)
    floor = max((held.tau for held in bounds.values()), default=0.0)
    drifts = []
    for each in DRIFTS:
        runs = [library.run(each.name, "production", seed) for seed in range(plan.seeds_of(each))]
        drifts.append(drift(each.name, grader, runs, bounds))
    return Outcome(
        faults=tuple(
            _fault(library, each, floor, quiet, rare_probes) for each in SCENES if library.plan.takes(each)
        ),
        clean=clean,
        drifts=tuple(drifts),
        run_length=plan.run_length,
        quiet_threshold=quiet,
    )


def bounds_of(grader: Grader) -> dict[str, Bounds]:
    """In force after calibration, by resume kind."""
    detector = grader.fresh()
    held = {k.kind: detector.bounds(k.kind) for k in grader.report.kinds}
    return {kind: bounds for kind, bounds in held.items() if bounds is not None}


def _fault(library: Library, scene: Scene, floor: float, quiet: float, rare_probes: int) -> FaultOutcome:
    plan = library.plan
    judged: dict[Numerics, Judged] = {}
    runs: dict[Numerics, list[list[Probe]]] = {}
    for numerics in NUMERICS:
        grader = Grader(library.calibration(scene.name, numerics), plan.detect(scene, numerics))
        runs[numerics] = [library.run(scene.name, numerics, seed) for seed in range(plan.seeds_of(scene))]
        judged[numerics] = _judged(grader, runs[numerics], quiet)
    signal = signal_of([probe for run in runs["exact"] for probe in run])
    rare = None
    if signal.apart < RARE / 5 and signal.together > RARE and not plan.often:
        per_mille = round(1000 * (RARE - signal.apart) / (signal.together - signal.apart))
        longer = [made_rare(runs["production"], per_mille, rare_probes, seed) for seed in range(plan.seeds)]
        grader = Grader(library.calibration(scene.name, "production"), plan.detect(scene, "production"))
        rare = _judged(grader, longer, quiet)
    recorded = plan.probes_of(scene, "production")
    return FaultOutcome(scene.name, scene.fault, scene.unseen, recorded, signal, floor, judged, rare)


def signal_of(truth: Sequence[Probe]) -> Signal:
    """Share and size of what is spoiled among probes of servers with exact numerics."""
    scores = np.array([score_of(p) for p in truth if p.result.valid])
    hard = sum(p.result.outcome.hard_alarm for p in truth)
    spoiled = scores[scores > 0]
    shares = []
    for together in (True, False):
        held = [p.result for p in truth if p.together is together]
        bad = sum((r.divergence is not None and not r.divergence.zero) or r.outcome.hard_alarm for r in held)
        counted = sum(r.valid or r.outcome.hard_alarm for r in held)
        shares.append(bad / counted if counted else 0.0)
    return Signal(
        share=float(np.mean(scores > 0)) if scores.size else 0.0,
        score=float(np.median(spoiled)) if spoiled.size else 0.0,
        hard=hard / len(truth) if truth else 0.0,
        together=shares[0],
        apart=shares[1],
    )


def _judged(grader: Grader, runs: Sequence[Sequence[Probe]], quiet: float) -> Judged:
    grades = [grader.run(run) for run in runs]
    bounds = bounds_of(grader)
    k3 = [[p.k3 for p in run if p.result.valid] for run in runs]
    return Judged(
        runs=len(grades),
        alarm=quantiles([g.alarm for g in grades]),
        corrupt=quantiles([g.corrupt for g in grades]),
        tokens=quantiles([g.tokens for g in grades]),
        channels=dict(Counter(g.channel for g in grades if g.channel)),
        at_calibration=tuple(alarm.channel for alarm in grader.at_calibration),
        controls=sum(k.controls for k in grader.report.kinds),
        tau={kind: held.tau for kind, held in bounds.items()},
        p0={kind: held.p0 for kind, held in bounds.items()},
        public=tuple(quantiles([g.public[i] for g in grades]) for i in range(2)),
        quiet=quantiles([public_rule(values, quiet) for values in k3]),
        cusum=quantiles([g.cusum for g in grades]),
    )


def _clean(library: Library, numerics: Numerics, bootstrapped: int) -> CleanOutcome:
    plan = library.plan
    calibration = library.calibration(CLEAN, numerics)
    grader = Grader(calibration, plan.detect(CLEAN_SCENE, numerics))
    runs = [library.run(CLEAN, numerics, seed) for seed in range(plan.seeds_of(CLEAN_SCENE))]
    cusum = Cusum([c.divergence.score for c in calibration.controls], plan.run_length)
    bounds = bounds_of(grader)
    measured = [
        measured_run_length(runs, bounds, length, repeats=100, steps=int(10 * length))
        for length in RUN_LENGTHS
        if bounds
    ]
    return CleanOutcome(
        p0={kind: held.p0 for kind, held in bounds.items()},
        at_calibration=tuple(alarm.channel for alarm in grader.at_calibration),
        recorded=false_alarms(grader, [p for run in runs for p in run], cusum),
        extended=false_alarms(grader, list(bootstrap(runs, bootstrapped, seed=1)), cusum),
        run_lengths=tuple(measured),
    )
