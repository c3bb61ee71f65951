"""One look at a running soak: what the live display shows. A frozen value, taken whole, never updated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from soak.detect.verdict import DetectorReport, KindCalibration, Verdict
from soak.drive.coverage_state import ConjunctionCoverage
from soak.export.tally import Tally


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Seconds, counts and nats at one moment.

    duration_s: None for a run without end. asked: prompts the plan wanted sent by now; delivered: those sent.
    outcomes: load requests by outcome. probes_invalid: by reason, without evicted victims. k3, max_abs,
    control_k3: the last few comparisons, oldest first. log_evidence: of the sum over all streams, None while
    there is none; log_bar: what it would have to reach, None while there is no bar; streams: each with its
    own, the strongest first. budgets: by name, the share in use. events: newest last.
    """

    verdict: Verdict
    elapsed_s: float
    target: str
    seed: int
    duration_s: float | None = None
    phase: str = ""
    simulator: bool = False
    asked: int = 0
    delivered: int = 0
    in_flight: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    probes_valid: int = 0
    probes_invalid: Mapping[str, int] = field(default_factory=dict)
    victims_evicted: int = 0
    k3: tuple[float, ...] = ()
    max_abs: tuple[float, ...] = ()
    control_k3: tuple[float, ...] = ()
    coverage: tuple[ConjunctionCoverage, ...] = ()
    log_evidence: float | None = None
    log_bar: float | None = None
    streams: tuple[tuple[str, float], ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    kinds: tuple[KindCalibration, ...] = ()
    alarms: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


def take_snapshot(
    tally: Tally,
    report: DetectorReport,
    coverage: Iterable[ConjunctionCoverage],
    *,
    elapsed_s: float,
    duration_s: float | None,
    target: str,
    seed: int,
    asked: int,
    delivered: int,
    in_flight: int,
    verdict: Verdict | None = None,
    phase: str = "",
    simulator: bool = False,
    events: Iterable[str] = (),
    budgets: Mapping[str, float] = MappingProxyType({}),
) -> Snapshot:
    """Put together what a run holds. ``verdict`` stands for the report's where coverage has changed it."""
    invalid = tally.probes_invalid | tally.hard_alarms
    return Snapshot(
        verdict=report.verdict if verdict is None else verdict,
        elapsed_s=elapsed_s,
        target=target,
        seed=seed,
        duration_s=duration_s,
        phase=phase,
        simulator=simulator,
        asked=asked,
        delivered=delivered,
        in_flight=in_flight,
        outcomes=tally.outcomes,
        probes_valid=tally.probes_valid,
        probes_invalid=invalid,
        victims_evicted=tally.victims_evicted,
        k3=tuple(tally.recent_k3),
        max_abs=tuple(tally.recent_max_abs),
        control_k3=tuple(tally.recent_control_k3),
        coverage=tuple(coverage),
        log_evidence=report.log_sum,
        log_bar=report.log_bar if report.log_bar > 0.0 else None,
        streams=tuple(
            sorted(
                ((name, value) for name, value in report.log_evidence.items() if math.isfinite(value)),
                key=lambda pair: -pair[1],
            )
        ),
        budgets=dict(budgets),
        kinds=report.kinds,
        alarms=tuple(
            f"{a.verdict.value} {a.channel} {a.stream or a.shape}: {a.evidence}" for a in report.alarms
        ),
        events=tuple(events),
    )
