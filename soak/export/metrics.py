"""What a run tells Prometheus: one call per thing that happened, no arithmetic beyond unit and label.

Must never block, never do I/O and never let an unbounded value into a label: ``families`` names every metric.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Tallied
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from soak.detect.verdict import Alarm, DetectorReport, Verdict
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.drive.deed import IN_FORCE, Deed
from soak.drive.observation import Observation
from soak.export.families import (
    NATS_SHOWN_MAX,
    AdaptiveFamilies,
    ChaosFamilies,
    JournalFamilies,
    LoadFamilies,
    ProbeFamilies,
    VerdictFamilies,
)
from soak.export.labels import BoundedLabel
from soak.export.needles import grade
from soak.export.tally import inter_token_gaps
from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.plan.adaptive import Decision
from soak.sglang.exchange import Outcome

MODES = ("exact", "tolerance", "calibrating")
ACKED = ("no", "known", "until")
RESTARTED = {True: "yes", False: "no", None: "unknown"}


class _ShapeSeries:
    """The series of one shape's load, looked up once: a look-up by labels costs more than counting."""

    def __init__(self, load: LoadFamilies, shape: str) -> None:
        self._load, self._shape = load, shape
        self._outcomes: dict[Outcome, Counter] = {}
        self._inter_token: Histogram | None = None
        self._ttft: Histogram | None = None
        self.retractions, self.late = load.retractions.labels(shape), load.late.labels(shape)
        self.latency = load.latency.labels(shape)
        self.prompt_tokens = load.prompt_tokens.labels(shape)
        self.completion_tokens = load.completion_tokens.labels(shape)
        self.cached_tokens = load.cached_tokens.labels(shape)

    def outcome(self, outcome: Outcome) -> Counter:
        """Requests that came to it."""
        found = self._outcomes.get(outcome)
        if found is None:
            found = self._outcomes[outcome] = self._load.requests.labels(self._shape, outcome.value)
        return found

    def took(self, seen: Observation) -> None:
        """The times of one good answer."""
        self.latency.observe(max(0.0, seen.latency_s))
        ttft = seen.ttft_s
        if ttft is None:
            return  # not streamed
        if self._ttft is None or self._inter_token is None:
            self._ttft = self._load.ttft.labels(self._shape)
            self._inter_token = self._load.inter_token.labels(self._shape)
        self._ttft.observe(max(0.0, ttft))
        for gap in inter_token_gaps(seen.answer):
            self._inter_token.observe(gap)


class RunMetrics:
    """The metrics of one run, in the registry given.

    shapes: those of the workload; their counters exist at zero from the start, so that a first failure is an
    increase that an alert can see.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        shapes: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.load = LoadFamilies(registry)
        self.probe = ProbeFamilies(registry)
        self.judged = VerdictFamilies(registry)
        self.adaptive = AdaptiveFamilies(registry)
        self.journal = JournalFamilies(registry)
        self.chaos = ChaosFamilies(registry)
        self._clock = clock
        self._shape, self._reason = BoundedLabel(64), BoundedLabel(32)
        self._stream, self._conjunction = BoundedLabel(1024), BoundedLabel(128)
        self._channel, self._kind, self._budget = BoundedLabel(64), BoundedLabel(16), BoundedLabel(16)
        self._outcome = BoundedLabel(4)
        self._started_s = 0.0
        self._series: dict[str, _ShapeSeries] = {}
        self._totals: dict[tuple[str, str], float] = {}
        self._known: set[tuple[int, str]] = set()
        self._streams_shown: set[str] = set()
        self._fingerprint = ""
        self._alarms_shown: set[tuple[str, str, str]] = set()
        for verdict in Verdict:
            self.judged.verdict.labels(verdict.value).set(0)
        for purpose in ("load", "probe"):
            self.load.in_flight.labels(purpose).set(0)
        for told in RESTARTED.values():
            self.load.gaps.labels(told)
        for outcome in Outcome:  # a panel of nothing lost shows zeros, not "no data"
            self.load.in_gaps.labels(outcome.value)
        for shape in shapes:
            for outcome in Outcome:
                self.load.requests.labels(self._shape(shape), outcome.value)
            for probed in ProbeOutcome:
                self.probe.probes.labels(self._shape(shape), ResumeKind.PREFILL.value, probed.value)
            for counter in (
                self.load.prompt_tokens,
                self.load.completion_tokens,
                self.load.cached_tokens,
                self.load.retractions,
                self.load.late,
                self.probe.tokens,
                self.probe.evicted,
            ):
                counter.labels(self._shape(shape))

    def set_build_info(
        self, version: str, plan_version: str, fingerprint_digest: str, simulator: bool
    ) -> None:
        """What runs, and against what; before any report.

        The digest is of the allow-listed fingerprint, never of an address.
        """
        self._fingerprint = fingerprint_digest
        self.judged.build.info({"version": version, "plan_version": plan_version})
        self.judged.target.info(
            {"fingerprint": fingerprint_digest, "simulator": "true" if simulator else "false"}
        )

    def set_runner_fixes(self, states: Mapping[str, str]) -> None:
        """State of every known fault in the server's installation, where its record is known."""
        for fault, state in states.items():
            self.judged.runner_fix.labels(fault).info({"state": state})

    def run_started(self, unix_s: float) -> None:
        """Wall-clock start of the run; coverage times are counted from it."""
        self.judged.started.set(unix_s)
        self._started_s = unix_s

    def set_target_up(self, up: bool) -> None:
        """Whether the server answered last."""
        self.judged.target_up.set(1 if up else 0)

    def observe_load(self, seen: Observation, *, late: bool = False, in_gap: bool = False) -> None:
        """One answered load prompt. Latencies are taken from ok answers only.

        late: its times are partly ours; in_gap: there was no server.
        """
        answer = seen.answer
        if in_gap:
            self.load.in_gaps.labels(answer.outcome.value).inc()
            return
        series = self._series.get(seen.item.shape)
        if series is None:
            series = self._series[seen.item.shape] = _ShapeSeries(self.load, self._shape(seen.item.shape))
        series.outcome(answer.outcome).inc()
        self.load.schedule_lag.observe(seen.lag_s)
        if answer.num_retractions:
            series.retractions.inc(answer.num_retractions)
        if not answer.ok:
            return
        if late:
            series.late.inc()
        else:
            series.took(seen)
        series.prompt_tokens.inc(answer.prompt_tokens)
        series.completion_tokens.inc(answer.completion_tokens)
        if answer.cached_tokens:
            series.cached_tokens.inc(answer.cached_tokens)

    def observe_probe(self, result: ProbeResult) -> None:
        """One probe, valid or not."""
        shape, kind = self._shape(result.shape), result.kind.value
        self.probe.probes.labels(shape, kind, result.outcome.value).inc()
        self.probe.tokens.labels(shape).inc(result.tokens_spent)
        self.probe.seconds.labels(shape).observe(max(0.0, result.seconds))
        if result.outcome is ProbeOutcome.EVICTED:
            self.probe.evicted.labels(shape).inc()
        if not result.valid:
            return
        self.probe.last_valid.set(self._clock())
        self._compared(shape, kind, "probe", result.divergence)
        self._compared(shape, kind, "control", result.control)
        self._compared(shape, kind, "cold_repeat", result.cold_repeat)
        self._compared(shape, kind, "served", result.served)
        if result.coarsened is not None:
            self.probe.coarsened.labels(shape, kind).observe(min(result.coarsened.mean, NATS_SHOWN_MAX))
        if result.divergence is not None and result.divergence.onset > 0:
            self.probe.onset.labels(shape, kind).observe(result.divergence.onset)
        if result.amnesia is not None:
            if result.amnesia.ratio is None:
                self.probe.amnesia_undefined.labels(shape, kind).inc()
            else:
                self.probe.amnesia.labels(shape, kind).observe(max(0.0, result.amnesia.ratio))

        if result.needle is not None:
            for side, seen in (("cold", result.needle.cold), ("cached", result.needle.warm)):
                self.probe.needles.labels(str(result.needle.depth), grade(seen), side).inc()

    def _compared(self, shape: str, kind: str, comparison: str, divergence: Divergence | None) -> None:
        if divergence is None:
            return
        labels = (shape, kind, comparison)
        self.probe.k3.labels(*labels).observe(min(divergence.k3, NATS_SHOWN_MAX))
        self.probe.max_abs.labels(*labels).observe(min(divergence.max_abs, NATS_SHOWN_MAX))
        self.probe.bit_exact.labels(*labels).inc(1 if divergence.zero else 0)

    def set_verdict(self, verdict: Verdict) -> None:
        """The verdict in force."""
        for each in Verdict:
            self.judged.verdict.labels(each.value).set(1 if each is verdict else 0)

    def set_state_saved(self, unix_s: float) -> None:
        """When the state file was last written."""
        self.judged.state_saved.set(unix_s)

    def set_report(self, report: DetectorReport, muted: Mapping[Alarm, str] = MappingProxyType({})) -> None:
        """Evidence, alarms and calibration as they stand; a stream that is gone loses its series.

        muted: ``known`` or ``until`` for alarms that are to send no page.
        """
        judged = self.judged
        judged.bar.set(report.log_bar)
        self._set_known(judged.combined, "main", report.log_sum)
        self._set_known(judged.combined, "paired", report.log_sum_paired)
        evidence = {self._stream(stream): value for stream, value in report.log_evidence.items()}
        for gone in self._streams_shown - evidence.keys():
            judged.evidence.remove(gone)
        for stream, value in evidence.items():
            judged.evidence.labels(stream).set(value)
        self._streams_shown = set(evidence)
        latched = Tallied(
            (self._channel(a.channel), self._shape(a.shape), a.verdict.value, muted.get(a, "no"))
            for a in report.alarms
        )
        self._alarms_shown |= {labels[:3] for labels in latched}
        for shown in self._alarms_shown:
            # Zeros beside: an alert that remembers the last value over a restart must see a mute come.
            for acked in ACKED:
                judged.alarms.labels(*shown, acked, self._fingerprint).set(latched[*shown, acked])
        guaranteed = any(k.ready and k.mode == "tolerance" for k in report.kinds) and report.log_bar > 0.0
        judged.run_length.set(math.exp(min(report.log_bar, 700.0)) if guaranteed else 0.0)
        for calibration in report.kinds:
            kind = self._kind(calibration.kind)
            judged.controls.labels(kind).set(calibration.controls)
            judged.controls_needed.labels(kind).set(calibration.controls_needed)
            judged.calibrated.labels(kind).set(1 if calibration.ready else 0)
            for mode in MODES:
                judged.mode.labels(kind, mode).set(1 if mode == calibration.mode else 0)
            self._set_known(judged.threshold, kind, calibration.threshold)
            self._set_known(judged.p0, kind, calibration.p0)
            self._set_known(judged.control_floor, kind, calibration.control_floor)
            self._set_known(judged.cold_floor, kind, calibration.cold_floor)

    def set_coverage(self, coverage: Iterable[ConjunctionCoverage]) -> None:
        """Every conjunction as it stands; counts are cumulative over the run."""
        for entry in coverage:
            name = self._conjunction(entry.name)
            for state in CoverageState:
                self.judged.coverage.labels(name, state.value).set(1 if state is entry.state else 0)
            self._advance(self.judged.reached.labels(name), ("reached", name), entry.count)
            self._advance(self.judged.coverage_probes.labels(name), ("probes", name), entry.probes)
            reached_at = 0.0 if entry.last_s is None else self._started_s + entry.last_s
            self.judged.coverage_last.labels(name).set(reached_at)

    def set_load(self, asked_total: int, delivered_total: int, undelivered: Mapping[str, int]) -> None:
        """Cumulative counts since the start of the run; ``undelivered`` by reason."""
        self._advance(self.load.asked, ("asked", ""), asked_total)
        self._advance(self.load.delivered, ("delivered", ""), delivered_total)
        by_reason: Tallied[str] = Tallied()
        for reason, count in undelivered.items():
            by_reason[self._reason(reason)] += count
        for reason, count in by_reason.items():
            self._advance(self.load.undelivered.labels(reason), ("undelivered", reason), count)

    def set_decision(self, number: int, taken: Decision) -> None:
        """The latest decision of an adaptive run, and its number."""
        self._advance(self.adaptive.decisions, ("adaptive", ""), number)
        self.adaptive.together.set(taken.together)
        self.adaptive.burst.set(taken.burst)
        self.adaptive.context.set(taken.context)
        for shape, weight in taken.weights:
            self.adaptive.weight.labels(self._shape(shape)).set(weight)

    def set_gaps(self, restarted: Mapping[bool | None, int], gone_seconds_total: float) -> None:
        """Gaps that are over, by whether the server was restarted, and the seconds of all of them."""
        for told, count in restarted.items():
            label = RESTARTED[told]
            self._advance(self.load.gaps.labels(label), ("gaps", label), count)
        self._advance(self.load.gone, ("gone", ""), gone_seconds_total)

    def set_journal(self, rows_total: int, dropped_total: int, used_bytes: int) -> None:
        """What the journal has written and lost so far, and its size."""
        self._advance(self.journal.rows, ("journal", "rows"), rows_total)
        self._advance(self.journal.dropped, ("journal", "dropped"), dropped_total)
        self.journal.bytes.set(used_bytes)

    def set_in_flight(self, load: int, probes: int) -> None:
        """Requests sent and not answered yet."""
        self.load.in_flight.labels("load").set(load)
        self.load.in_flight.labels("probe").set(probes)

    def set_budget_used(self, budget: str, ratio: float) -> None:
        """Share in use of one named budget; 1 is all of it."""
        self.load.budget_used.labels(self._budget(budget)).set(ratio)

    def count_annotation(self, outcome: str) -> None:
        """An annotation for Grafana was sent or dropped. May be called from another thread."""
        self.judged.annotations.labels(self._outcome(outcome)).inc()

    def observe_deed(self, deed: Deed) -> None:
        """An action of an experiment begins, or is over."""
        if deed.outcome == IN_FORCE:
            self.chaos.in_force.labels(deed.name).inc()
        else:
            self.chaos.in_force.labels(deed.name).dec()
            self.chaos.actions.labels(deed.name, deed.outcome).inc()

    def loop_lag(self, seconds: float) -> None:
        """One measurement of how late the event loop woke up."""
        self.load.loop_lag.observe(max(0.0, seconds))

    def _advance(self, counter: Counter, key: tuple[str, str], total: float) -> None:
        """Bring a counter to a total that is counted elsewhere; a total that fell leaves it where it is."""
        before = self._totals.get(key, 0)
        if total > before:
            counter.inc(total - before)
            self._totals[key] = total

    def _set_known(self, gauge: Gauge, label: str, value: float | None) -> None:
        """A figure that is not known has no series."""
        if value is not None:
            gauge.labels(label).set(value)
            self._known.add((id(gauge), label))
        elif (id(gauge), label) in self._known:
            self._known.remove((id(gauge), label))
            gauge.remove(label)
