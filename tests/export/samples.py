"""Made-up observations, probes and reports: complete, plausible, and cheap to vary."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from soak.detect.verdict import Alarm, DetectorReport, KindCalibration, Verdict
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.drive.deed import Deed
from soak.drive.observation import Observation
from soak.export.metrics import RunMetrics
from soak.export.summary import LoadCount, RunFacts, build_summary
from soak.export.tally import Tally
from soak.oracle.amnesia import Amnesia, amnesia
from soak.oracle.coarsened import CoarsenedKL
from soak.oracle.divergence import Divergence, diverge
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.recall import Recall, Recalled
from soak.plan.adaptive import Decision
from soak.plan.item import Item, Prompt, Segment
from soak.sglang.exchange import Answer, Outcome

ITEM = Item(0, 0, "shared-prefix", 0, (Prompt((Segment("root", 0, 0, 32),)),), 4)
STARTED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ENDED = datetime(2026, 3, 1, 12, 1, 30, tzinfo=UTC)


def observation(
    shape: str = "shared-prefix",
    outcome: Outcome = Outcome.OK,
    *,
    rid: str = "r0",
    intended_s: float = 10.0,
    sent_s: float = 10.002,
    chunk_s: tuple[float, ...] = (10.1, 10.12, 10.14, 10.16),
    tokens: int = 4,
) -> Observation:
    answer = Answer(
        rid=rid,
        outcome=outcome,
        sent_s=sent_s,
        first_token_s=chunk_s[0] if chunk_s else None,
        finished_s=chunk_s[-1] if chunk_s else sent_s,
        prompt_tokens=32,
        completion_tokens=tokens,
        cached_tokens=16,
        chunk_s=list(chunk_s),
    )
    return Observation(replace(ITEM, shape=shape), 0, np.arange(32, dtype=np.int32), intended_s, answer)


def divergence(size: float = 0.0, tokens: int = 32) -> Divergence:
    cold = np.full(tokens, -2.0)
    warm = cold.copy()
    warm[3:] -= size
    return diverge(warm, cold)


def probe(
    shape: str = "shared-prefix",
    outcome: ProbeOutcome = ProbeOutcome.VALID,
    *,
    number: int = 0,
    size: float = 0.0,
    control: float | None = 0.0,
    kind: ResumeKind = ResumeKind.PREFILL,
) -> ProbeResult:
    result = ProbeResult(
        number=number, shape=shape, kind=kind, outcome=outcome, seconds=0.2, tokens_spent=100
    )
    if outcome is ProbeOutcome.VALID:
        result.resume_boundary = 512
        result.divergence = divergence(size)
        result.control = None if control is None else divergence(control)
        result.cold_repeat = divergence(0.0)
        result.coarsened = CoarsenedKL(8, size / 2, size)
        result.amnesia = amnesia(np.full(8, -2.0 - size), np.full(8, -2.0), np.full(8, -4.0))
    return result


COVERAGE = (
    ConjunctionCoverage(
        "chunked prefill beside another", CoverageState.CONFIRMED, 7, 61.5, 5, "chunked-burst"
    ),
    ConjunctionCoverage("retraction", CoverageState.NOT_REACHED, 0, None, 0, "pressure", "no pressure yet"),
)

KIND = KindCalibration(
    "prefill", 80, 60, True, "tolerance", threshold=1e-5, p0=0.18, control_floor=2e-6, cold_floor=1e-6
)


def report(verdict: Verdict = Verdict.CLEAN) -> DetectorReport:
    alarms = (
        (Alarm(Verdict.CORRUPT, "absolute", "shared-prefix/512/prefill", "shared-prefix", "k3 2.1", (4, 9)),)
        if verdict is Verdict.CORRUPT
        else ()
    )
    return DetectorReport(
        verdict,
        alarms,
        (KIND,),
        {"shared-prefix/512/prefill": 3.5, "long-context/1024/prefill": float("-inf")},
        log_bar=13.8,
        log_sum=3.5,
        log_sum_paired=0.4,
        statement="At least 1,000,000 probes to a false alarm on average.",
    )


FACTS = RunFacts(
    target="http://127.0.0.1:30000",
    seed=7,
    nonce=1234,
    plan_version=1,
    spec_digest="ab12",
    soak_version="0.1.0",
    simulator=False,
    fingerprint={"version": "0.5.18", "model_path": "tiny"},
)


def filled_tally() -> Tally:
    tally = Tally()
    for number in range(20):
        tally.observe_load(observation())
        tally.observe_probe(probe(number=number, size=0.001 * (number % 3)))
    tally.observe_load(observation("long-context", Outcome.TIMED_OUT, chunk_s=()))
    tally.observe_probe(probe("long-context", ProbeOutcome.EVICTED))
    tally.observe_probe(probe("long-context", ProbeOutcome.COLD_HIT))
    tally.observe_probe(probe("long-context", ProbeOutcome.NON_FINITE))
    tally.observe_loop_lag(0.003)
    return tally


def summary(verdict: Verdict = Verdict.CLEAN, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "verdict": verdict,
        "exit_code": 0,
        "reasons": ["20 valid probes"],
        "report": report(verdict),
        "coverage": COVERAGE,
        "tally": filled_tally(),
        "load": LoadCount(22, 21, {"server_busy": 1}),
        "started_at": STARTED,
        "ended_at": ENDED,
    }
    return build_summary(changes.pop("facts", FACTS), **(arguments | changes))


def every_metric(metrics: RunMetrics) -> None:
    metrics.set_build_info("0.1.0", "1", "ab12", simulator=True)
    metrics.set_runner_fixes({"stale-track-rows": "fixed", "stale-track-tail": "vulnerable"})
    metrics.run_started(1_772_366_000.0)
    metrics.set_target_up(True)
    metrics.observe_load(observation())
    metrics.observe_load(observation(outcome=Outcome.TIMED_OUT, chunk_s=()))
    metrics.observe_load(observation("long-context"), late=True)
    metrics.observe_load(observation(outcome=Outcome.DISCONNECTED, chunk_s=()), in_gap=True)
    metrics.set_gaps({True: 1}, 12.5)
    metrics.set_decision(1, Decision(24, 4, 3, 800, (("shared-prefix", 4),), "new load"))
    undefined = probe("long-context", size=0.5)
    undefined.amnesia = Amnesia(None, None, 0.5, 8)
    undefined.needle = Recall(50, 900, Recalled(-3.0, False), Recalled(-0.1, True))
    metrics.observe_probe(probe(size=0.5))
    metrics.observe_probe(undefined)
    metrics.observe_probe(probe(outcome=ProbeOutcome.EVICTED))
    metrics.set_verdict(Verdict.CORRUPT)
    metrics.set_report(report(Verdict.CORRUPT))
    metrics.set_coverage(COVERAGE)
    metrics.set_load(22, 21, {"server_busy": 1})
    metrics.set_in_flight(3, 2)
    metrics.set_journal(900, 1, 300_000)
    metrics.set_budget_used("probe_share", 0.25)
    metrics.loop_lag(0.003)
    metrics.count_annotation("sent")
    metrics.observe_deed(Deed(0, "flush", "server", 1.0))
    metrics.observe_deed(Deed(0, "flush", "server", 1.0, 2.0, outcome="done"))
