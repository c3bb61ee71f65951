"""Recording: calibrate one simulated server by its own controls, then probe the traces of a scene's traffic.

The oracle's own prober asks, over its own session. Nothing is judged here: what any detector could want to
know, a confirming pair among it, is asked for, and left out again when a detector that did not want it is
graded.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, fields

from soak.bench.detect.in_process import Site
from soak.bench.detect.records import CalibrationRecord, ControlRecord, Probe, first_k3
from soak.bench.detect.scenes import LOOSE, Scene
from soak.detect.calibration import SCORE_FLOOR
from soak.detect.ceilings import ceilings_over
from soak.detect.detector import Detector
from soak.detect.evidence import hit_bar
from soak.detect.settings import DetectSettings
from soak.oracle.divergence import Divergence, diverge
from soak.oracle.passes import Passes, PassFailedError, Question
from soak.oracle.probe import ProbeResult, ResumeKind
from soak.oracle.prober import Prober, ProbeSettings
from soak.oracle.victims import Victim, Victims
from soak.sim.config import Numerics, SimConfig

BUSY_PER_MILLE = 330
"""Of 1,000 acts, those whose prefixes are asked about while another request generates."""

CONTROLS_OF_ONE_ACT = 8
GIVE_UP = 3000
"""Controls of one kind, tried or made, after which a server that does not calibrate is left as it is."""

LATER_SEED = 500_000
CALIBRATION_SEED = 1_000_000
"""Far from the seeds of runs: calibration and runs share no draw and no noise."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is recorded. seeds: runs of each scene; probes: at most so many per run of a fault (0: the
    scene's own number); clean_seeds, clean_probes: runs of the clean server, and probes in each; loose:
    every calibration with the largest p0_max; run_length, exact_tokens: of the detectors; drift_seeds: runs
    of each clean server that changes under way; often: of 1,000 acts, those that bring a fault's conditions
    together, 0 for the scene's own number; only: the scenes that are recorded, all of them if it is empty;
    the rest are the prober's shares, in thousandths.
    """

    seeds: int = 20
    probes: int = 0
    clean_seeds: int = 20
    clean_probes: int = 256
    loose: bool = False
    run_length: float = 1e6
    exact_tokens: int = 4096
    control_per_mille: int = 125
    amnesia_per_mille: int = 60
    repeat_per_mille: int = 125
    drift_seeds: int = 3
    often: int = 0
    only: tuple[str, ...] = ()

    def takes(self, scene: Scene) -> bool:
        """Whether a scene is part of it."""
        return not self.only or scene.name in self.only

    def detect(self, scene: Scene, numerics: Numerics) -> DetectSettings:
        """The detectors' settings on a server with these numerics, which says so. Exact mode needs no p0."""
        return DetectSettings(
            p0_max=LOOSE if self.loose or numerics == "exact" else scene.p0_max,
            run_length=self.run_length,
            deterministic=numerics == "exact",
            exact_tokens=self.exact_tokens,
        )

    def probes_of(self, scene: Scene, numerics: Numerics) -> int:
        """Probes of one run. Exact mode tells within a few, so fewer are recorded."""
        if not scene.fault:
            return min(scene.probes, self.clean_probes)
        own = scene.exact_probes if numerics == "exact" else scene.probes
        return min(own, self.probes or own)

    def seeds_of(self, scene: Scene) -> int:
        """Runs of a scene."""
        if scene.fault:
            return self.seeds
        return self.drift_seeds if scene.calibrated_by else self.clean_seeds

    def often_of(self, scene: Scene) -> int:
        """Of 1,000 acts, those in which the scene's conditions come together."""
        return self.often or scene.often

    def made_for(self, scene: Scene, numerics: Numerics, seed: int | None) -> dict[str, object]:
        """What a record depends on, beside the code. seed None: a calibration."""
        config = scene.config(numerics, CALIBRATION_SEED if seed is None else seed)
        default = SimConfig()
        asked: dict[str, object] = {
            "scene": scene.name,
            "often": self.often_of(scene),
            "act": scene.act.__name__,
            "p0_max": self.detect(scene, numerics).p0_max,
            "exact_tokens": self.exact_tokens,
            "shares": [self.control_per_mille, self.amnesia_per_mille, self.repeat_per_mille],
            "server": {
                each.name: getattr(config, each.name)
                for each in fields(config)
                if getattr(config, each.name) != getattr(default, each.name)
            },
        }
        if seed is not None:
            asked["probes"] = self.probes_of(scene, numerics)
        if not scene.fault and scene.calibrated_by:
            asked.update(noise=scene.noise, later=dict(scene.later))
        return asked


@dataclass(slots=True)
class Wanting:
    """The detectors' part while a run is recorded: a pair is wanted wherever one of them could want one.

    bars: by resume kind, the score over which a probe can speak against the server, 0 where any difference
    does; kinds that no control can copy have none.
    """

    bars: dict[ResumeKind, float]

    def wants_cold_repeat(self) -> bool:
        """Calibration has seen to that."""
        return False

    def wants_repeat(self, result: ProbeResult) -> str | None:
        """Whether a score is over its kind's bar, or over a ceiling, or a control differs in exact mode."""
        divergence = result.divergence
        if divergence is None:
            return None
        bar = self.bars.get(result.kind, math.inf)
        control = result.control
        if divergence.score > bar or ceilings_over(result):
            return "a detector could want it"
        if bar == 0.0 and (not divergence.zero or (control is not None and not control.zero)):
            return "exact mode could want it"
        return None


def bars_of(detector: Detector, scene: Scene, numerics: Numerics) -> dict[ResumeKind, float]:
    """For ``Wanting``, from what was learned in calibration."""
    if numerics == "exact":
        return dict.fromkeys(ResumeKind, 0.0)
    bounds = {kind: detector.bounds(kind) for kind in scene.kinds}
    return {kind: SCORE_FLOOR if held is None else hit_bar(held) for kind, held in bounds.items()}


def calibrated(record: CalibrationRecord, settings: DetectSettings) -> Detector:
    """A detector that has been shown all of a calibration."""
    detector = Detector(settings)
    for divergence, load in record.colds:
        detector.add_cold_repeat(divergence, load)
    for control in record.controls:
        detector.add_control(control.kind, control.divergence, control.under_load)
    return detector


async def record_calibration(scene: Scene, numerics: Numerics, plan: Plan) -> CalibrationRecord:
    """Controls and repeated cold passes of one server, in quiet and beside others, until it is calibrated."""
    site = Site(scene.config(numerics, CALIBRATION_SEED), CALIBRATION_SEED, scene.name)
    detector = Detector(plan.detect(scene, numerics))
    controls: list[ControlRecord] = []
    colds: list[tuple[Divergence, bool]] = []
    tried: Counter[ResumeKind] = Counter()
    refused: Counter[str] = Counter()
    hard = number = 0
    loaded = False
    while wanting := [k for k in scene.kinds if _lacks_controls(detector, k) and tried[k] < GIVE_UP]:
        victims = Victims(site.seed)
        for victim in scene.act(site, site.draw.chance(plan.often_of(scene))):
            victims.add(victim)
        prober = _prober(site, victims, plan, Wanting({}))
        loaded = not loaded
        generating = 40 * CONTROLS_OF_ONE_ACT if ResumeKind.DECODE in wanting else 16
        with site.busy(generating) if loaded else nullcontext():
            for _ in range(CONTROLS_OF_ONE_ACT):
                if detector.wants_cold_repeat():
                    repeat = await _cold_repeat(site)
                    if repeat is None:
                        hard += 1
                    else:
                        detector.add_cold_repeat(repeat, loaded)
                        colds.append((repeat, loaded))
            for kind in wanting * CONTROLS_OF_ONE_ACT:
                number += 1
                tried[kind] += 1
                made = await prober.control(number, kind)
                if isinstance(made, ProbeResult):
                    hard += 1
                elif made is None or made.control.divergence is None:
                    refused["no such prefix" if made is None else made.control.note] += 1
                else:
                    controls.append(ControlRecord(kind, made.control.divergence, loaded))
                    detector.add_control(kind, made.control.divergence, loaded)
    return CalibrationRecord(tuple(controls), tuple(colds), hard, dict(refused.most_common(5)))


def _lacks_controls(detector: Detector, kind: ResumeKind) -> bool:
    """Whether a kind is not calibrated, or its controls may still bring it into exact mode."""
    return detector.wants_control(kind) or detector.exact_may_come(kind)


async def _cold_repeat(site: Site) -> Divergence | None:
    """Two cold passes of the same tokens against each other; None if one of them was no answer."""
    passes = Passes(site.session, 120.0)
    question = Question(site.ids(site.draw.between(160, 260)), 100)
    try:
        first = await passes.cold(question)
        return diverge(await passes.cold(question), first)
    except PassFailedError as failed:
        if not failed.outcome.hard_alarm:
            raise
        return None


def _prober(site: Site, victims: Victims, plan: Plan, wanting: Wanting) -> Prober:
    settings = ProbeSettings(
        control_per_mille=plan.control_per_mille,
        amnesia_per_mille=plan.amnesia_per_mille,
        repeat_per_mille=plan.repeat_per_mille,
    )
    return Prober(site.session, victims, wanting, site.geometry, settings, seed=site.seed, nonce=0)


async def record_run(
    scene: Scene, numerics: Numerics, plan: Plan, seed: int, bars: dict[ResumeKind, float]
) -> list[Probe]:
    """Probes of one run, in order: an act, then a probe of each prefix it left, and so on."""
    count = plan.probes_of(scene, numerics)
    wanting = Wanting(bars)
    site = Site(scene.config(numerics, seed), seed, scene.name)
    first, last = scene.noise
    probes: list[Probe] = []
    number = 0
    while len(probes) < count:
        if scene.later and len(probes) >= count // 2 and site.seed == seed:
            site = Site(scene.config(numerics, seed + LATER_SEED, later=True), seed + LATER_SEED, scene.name)
        if first != last:
            site.louder(first + (last - first) * len(probes) / count)
        together = site.draw.chance(plan.often_of(scene))
        prefixes = scene.act(site, together)
        number += 1
        with site.busy() if site.draw.chance(BUSY_PER_MILLE) else nullcontext():
            for prefix in prefixes:
                result = await _probe(site, prefix, plan, wanting, len(probes) + 1)
                repeated = result.cold_repeat is not None and result.confirmation is None
                probes.append(Probe(result, first_k3(result), repeated, number, together))
    return probes[:count]


async def _probe(site: Site, prefix: Victim, plan: Plan, wanting: Wanting, number: int) -> ProbeResult:
    victims = Victims(site.seed)
    victims.add(prefix)
    result = await _prober(site, victims, plan, wanting).probe(number)
    if result is None:
        raise RuntimeError("a prefix was there to be asked about, and was not asked about")
    return result
