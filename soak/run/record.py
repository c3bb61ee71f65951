"""What a run knows so far: each observation and probe goes to tally, course, metrics, coverage, victims and
detectors.

One place, so that nothing is told to the metrics and kept from the verdict. No I/O of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from prometheus_client import CollectorRegistry

from soak.config import Config
from soak.detect.conclude import conclude
from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm, Verdict
from soak.drive.beside_others import REQUIRED_BESIDE_OTHERS
from soak.drive.coverage import Coverage
from soak.drive.deed import IN_FORCE, Deed
from soak.drive.observation import Observation
from soak.export.course import Course
from soak.export.metrics import RunMetrics
from soak.export.tally import Tally
from soak.incident.journal import Journal
from soak.oracle.canaries import Canaries
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.prober import Standalone
from soak.oracle.victims import Asked, Victim, Victims
from soak.plan.adaptive import Decision
from soak.plan.item import Needle, WrittenBy
from soak.plan.shapes import canary, leaves_a_victim, prefixes_of
from soak.plan.spec import ResolvedSpec
from soak.plan.strict import code_of, wrong
from soak.run.adapting import Adapting, words
from soak.run.continuity import GONE
from soak.run.thresholds import LoadFigures
from soak.run.worker_book import WorkerBook
from soak.sglang.exchange import Outcome

_CONTROLLED = {ResumeKind.PREFILL: WrittenBy.PREFILL, ResumeKind.DECODE: WrittenBy.DECODE}
_MOST_VICTIMS = 2_000_000  # tokens held here, whatever the server holds
_POOLS = 2  # pools' worth: what was written longer ago is evicted, and asking for it evicts what is not
_MIN_VICTIM = 32  # tokens; shorter prefixes have no resume worth asking about


class Record:
    """Fed by driver and prober; asked by the display, the metrics and the conclusion."""

    def __init__(
        self,
        config: Config,
        spec: ResolvedSpec,
        *,
        nonce: int = 0,
        deterministic: bool,
        registry: CollectorRegistry,
        say: Callable[[str], None],
    ) -> None:
        shapes = [name for name, weight in spec.weights if weight]
        self._config = config
        self._geometry = spec.geometry
        self._say = say
        self.tally = Tally()
        self.course = Course()
        self.metrics = RunMetrics(registry, shapes=shapes)
        self.coverage = Coverage(spec.geometry, config.spec_shapes)
        self._plan_key = (config.run.seed, nonce)
        self.canaries: Canaries[Observation] = Canaries()
        pool = spec.geometry.max_total_tokens
        self.victims = Victims(
            config.run.seed,
            min(_MOST_VICTIMS, _POOLS * pool) if pool else _MOST_VICTIMS,
            oldest_s=config.probe.oldest if config.load.none else None,
        )
        self.detector = Detector(
            DetectSettings(
                p0_max=config.detect.p0_max,
                run_length=config.run_length,
                run_length_words=config.run_length_words,
                max_abs_d=config.detect.max_abs_d,
                deterministic=deterministic,
            )
        )
        self.workers = WorkerBook()
        self.journal: Journal | None = None  # told of everything before anybody judges it
        self.events: deque[str] = deque(maxlen=8)
        self.beside: list[Callable[[Observation, bool], None]] = []  # told of load, and of what a gap took
        self.adapting: Adapting | None = None  # asked before the detectors have taken a probe in
        self.mark_deed: Callable[[Deed], None] = lambda _deed: None
        self.file_alarm: Callable[[Alarm], str] = lambda _alarm: ""  # gives an alarm the id it is known under

    def another_server(self) -> None:
        """The server was replaced: its cache is gone, and maybe its model."""
        self.victims.clear()
        self.canaries.clear()

    def journal_load(self, seen: Observation) -> None:
        """One answered load prompt, written down at once, whatever is made of it."""
        if self.journal is not None:
            self.journal.observe_load(seen)

    def observe_load(self, seen: Observation, *, late: bool = False, in_gap: bool = False) -> None:
        """One answered load prompt; what it left in the cache is a victim from now on.

        late: its times are partly this process's own; in_gap: it was lost with the server.
        """
        self.tally.observe_load(seen, late=late, in_gap=in_gap)
        self.metrics.observe_load(seen, late=late, in_gap=in_gap)
        for told in self.beside:
            told(seen, in_gap)
        if in_gap:
            return
        self.coverage.observe_load(seen)
        if seen.answer.ok and not late:
            self.course.observe_load(seen)
        if seen.answer.ok:
            self._plant(seen)
            self._known_answer(seen)
        elif seen.answer.outcome is Outcome.INVALID_LOGPROBS or seen.answer.breaks_invariant:
            self._spoiled(seen)

    def _known_answer(self, seen: Observation) -> None:
        """What must have come back, where the plan knows: another request's answer is an alarm."""
        item, answer = seen.item, seen.answer
        if item.shape == canary.NAME:
            where = f"load request {item.index}, step {item.step}, part {seen.part}"
            key = canary.key_of(item, seen.part)
            for words, of in self.canaries.observe(key, answer.output_ids, where, seen):
                self._spoiled(of, words)  # it may be an earlier one: that is what went wrong
        if item.strict and answer.text is not None:
            code = code_of(*self._plan_key, item.index, seen.part)
            words = wrong(answer.text, code, answer.finish_reason == "stop")
            if words:
                self._spoiled(seen, f"load request {item.index}, part {seen.part}: its JSON answer {words}")

    def _spoiled(self, seen: Observation, words: str = "") -> None:
        """Load met a null, lengths that do not add up or another request's ids: an alarm as in any probe."""
        item, answer = seen.item, seen.answer
        decoded = item.written_by is WrittenBy.DECODE or item.parent is not None
        found = ProbeResult(
            number=0,  # no probe
            shape=item.shape,
            kind=ResumeKind.DECODE if decoded else ResumeKind.PREFILL,
            outcome=ProbeOutcome.NON_FINITE if "null" in answer.detail else ProbeOutcome.BROKEN_INVARIANT,
            detail=words or f"load request {item.index}, step {item.step}: {answer.detail}",
            resume_boundary=answer.cached_tokens,
            worker=answer.worker,
        )
        if self.journal is not None:
            self.journal.spoiled(seen, found)
        for alarm in self.detector.observe(found):
            self._alarm(alarm)

    def _plant(self, seen: Observation) -> None:
        item = seen.item
        if item.parent is not None:
            return  # its prefix was written twice over, by decode and by prefill: no control copies that
        if leaves_a_victim(item):
            for written_by in prefixes_of(item):
                self._add_victim(seen, written_by)

    def _add_victim(self, seen: Observation, written_by: WrittenBy) -> None:
        item, answer = seen.item, seen.answer
        decoded = written_by is WrittenBy.DECODE
        ids = np.concatenate([seen.ids, answer.output_ids]) if decoded else seen.ids
        if len(ids) < _MIN_VICTIM:
            return
        self.victims.add(
            Victim(
                ids=ids,
                prompt_len=len(seen.ids),
                shape=item.shape,
                written_by=written_by,
                index=item.index,
                step=item.step,
                part=seen.part,
                written_s=answer.finished_s,
                temperature=item.temperature,
                retractions=answer.num_retractions,
                namespace=seen.namespace,
                adapter=None if item.adapter is None else self._geometry.adapters[item.adapter],
                needle=None if item.needle is None else self._asked(item.needle),
                served=answer.output_logprobs if decoded and item.return_logprob else None,
                worker=answer.worker,
            ),
            poor_recipe=written_by is not item.written_by,  # it has few tokens that decode wrote
        )

    def _asked(self, needle: Needle) -> Asked:
        question, answer = (s.ids(*self._plan_key, self._geometry) for s in (needle.question, needle.answer))
        return Asked(needle.depth, question, answer)

    def observe_probe(self, result: ProbeResult) -> None:
        """One probe; new alarms are said at once."""
        if self.journal is not None:
            self.journal.observe_probe(result)
        self.tally.observe_probe(result)
        self.course.observe_probe(result)
        self.metrics.observe_probe(result)
        self.coverage.observe_probe(result)
        self.workers.observe_probe(result)
        if self.adapting is not None:
            self.adapting.observe(result)
        for alarm in self.detector.observe(result):
            self._alarm(alarm)

    def observe_deed(self, deed: Deed) -> None:
        """Something is done on purpose to the server or to the way to it; told when it begins and ends."""
        if self.journal is not None:
            self.journal.deed(deed)
        self.metrics.observe_deed(deed)
        words = "begins" if deed.outcome == IN_FORCE else f"{deed.outcome}: {deed.detail}".rstrip(": ")
        self.say(f"action {deed.number}, {deed.name} on {deed.target}: {words}")
        self.mark_deed(deed)

    def decided(self, number: int, taken: Decision) -> None:
        """The load changes from an index on, by a decision of that number."""
        self.metrics.set_decision(number, taken)
        self.say(words(number, taken))

    def observe_control(self, made: Standalone) -> None:
        """A control made for calibration alone."""
        control = made.control
        if control.divergence is None:
            self.detector.refuse_control(made.kind, control.note)
            return
        self.tally.observe_control(made.shape, control.divergence)
        self.course.observe_control(made.kind.value, control.divergence, control.off)
        for alarm in self.detector.add_control(made.kind, control.divergence, made.under_load):
            self._alarm(alarm)

    def lacking_controls(self) -> ResumeKind | None:
        """The kind, among those that load has written or probes have met, furthest from being calibrated.

        What decode wrote is often resumed inside its prompt: the verdict waits for that kind then as well.
        """
        missing = {
            kind: self.detector.controls_missing(kind)
            for kind, written_by in _CONTROLLED.items()
            if self.victims.has(written_by) or self.detector.waits_for(kind)
        }
        kind = max(missing, key=missing.__getitem__, default=None)
        return kind if kind is not None and missing[kind] else None

    def _alarm(self, alarm: Alarm) -> None:
        name = self.file_alarm(alarm)
        under = f" (alarm {name})" if name else ""
        self.say(f"{alarm.verdict.value}: {alarm.shape}: {alarm.channel}: {alarm.evidence}{under}")

    def say(self, words: str) -> None:
        """A line for people, kept among the recent events."""
        self.events.append(words)
        self._say(words)

    def loop_lag(self, seconds: float) -> None:
        """How late our own event loop was."""
        self.tally.observe_loop_lag(seconds)
        self.metrics.loop_lag(seconds)

    def verdict(self) -> tuple[Verdict, list[str]]:
        """The verdict as of now, with its reasons."""
        wanted = self._config.detect.require_coverage
        if wanted is None and self._config.load.none:
            wanted = REQUIRED_BESIDE_OTHERS
        required = [c for c in self.coverage.report() if wanted is None or c.name in wanted]
        return conclude(
            self.detector.report(), required, self.tally.probes_valid, self._config.detect.min_valid_probes
        )

    def load_figures(self, asked: int, delivered: int, undelivered: dict[str, int]) -> LoadFigures:
        """What the thresholds look at, over all shapes; what fell into a gap is not part of it."""
        lost = sum(self.tally.in_gaps.values())
        waited = undelivered.get(GONE, 0)
        return LoadFigures(
            asked=asked - lost - waited,
            delivered=delivered - lost,
            undelivered={reason: count for reason, count in undelivered.items() if reason != GONE},
            outcomes=self.tally.outcomes,
            ttft_p99_s=self.tally.latency_quantile("ttft", 0.99),
            latency_p99_s=self.tally.latency_quantile("latency", 0.99),
        )
