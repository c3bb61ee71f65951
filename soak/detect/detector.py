"""The detectors as one: probes in, alarms and a report out. No I/O, no clock, no randomness.

The order in which one probe is looked at matters: it is judged by what was known before it, and only then do
its control and its repeated cold pass teach anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from soak.detect.account import kind_calibration, kind_ready, reasons
from soak.detect.bounds_watch import BoundsWatch
from soak.detect.calibration import Bounds
from soak.detect.ceilings import FLOOR_COLDS, control_floor_reason, control_onset_reason
from soak.detect.evidence import Evidence, Sighting, shape_of
from soak.detect.exact import ExactMode, Finding, control_alarm, probe_alarm
from soak.detect.kind_book import KindBook
from soak.detect.medians import LatestMedian
from soak.detect.paired import looks_worse
from soak.detect.settings import HANDFUL, DetectSettings
from soak.detect.statement import KindGuarantee, guarantee
from soak.detect.verdict import Alarm, DetectorReport, Verdict
from soak.oracle.divergence import Divergence
from soak.oracle.probe import PAIR_WORDS, ProbeResult, ResumeKind

STATE_VERSION = 1


class Detector:
    """Judges one server, by its fingerprint: a new fingerprint wants a new detector."""

    def __init__(self, settings: DetectSettings) -> None:
        self.settings = settings
        self._books: dict[str, KindBook] = {}
        self._exact = ExactMode(settings.deterministic, settings.exact_tokens)
        self._watch = BoundsWatch(settings.max_abs_d)
        self._evidence = Evidence(settings.run_length)
        self._cold_k3 = LatestMedian()
        self._cold_scores = LatestMedian()
        self._alarms: list[Alarm] = []
        self._latched: dict[str, int] = {}

    def _book(self, kind: ResumeKind | str) -> KindBook:
        name = ResumeKind(kind).value
        book = self._books.get(name)
        if book is None:
            book = self._books[name] = KindBook(self.settings.p0_max)
        return book

    def _ready(self, kind: str) -> bool:
        book = self._books.get(kind)
        return book is not None and kind_ready(kind, book, self._exact)

    # What the caller asks before it spends passes

    def wants_control(self, kind: ResumeKind | str) -> bool:
        """Whether this kind still needs controls; afterwards the caller thins them out and keeps sending
        some.
        """
        return not self._ready(ResumeKind(kind).value)

    def controls_missing(self, kind: ResumeKind | str) -> int:
        """How many more controls until the next look at a kind's bounds, which may ask for more; 0 if it is
        ready.
        """
        name = ResumeKind(kind).value
        return 0 if self._ready(name) else self._book(name).calibration.controls_missing

    def waits_for(self, kind: ResumeKind | str) -> bool:
        """Whether enough probes were of this kind that the verdict waits for its controls."""
        return self._book(kind).probes >= HANDFUL

    def bounds(self, kind: ResumeKind | str) -> Bounds | None:
        """What is in force for a kind in tolerance mode; None while it is calibrating."""
        return self._book(kind).calibration.bounds

    def exact_may_come(self, kind: ResumeKind | str) -> bool:
        """Whether more controls and repeated cold passes may still bring a kind into exact mode."""
        name = ResumeKind(kind).value
        return self._exact.possible(name) and not self._exact.in_force(name)

    def wants_cold_repeat(self) -> bool:
        """Whether repeated cold passes are missing: for the cold floor, or for exact mode to be entered."""
        return len(self._cold_k3) < FLOOR_COLDS or self._exact.wants_cold_repeat()

    def wants_repeat(self, result: ProbeResult) -> str | None:
        """Why a second cold and a confirming warm pass should be run now, before ``observe``; None if not.

        Nothing is asked for again once the stream's alarm of that channel stands as CORRUPT.
        """
        divergence = result.divergence
        if not result.valid or divergence is None:
            return None
        reason = self._exact_reason(result, divergence) or self._watch.wants_repeat(result)
        return reason or self._evidence_reason(result, divergence) or None

    def _exact_reason(self, result: ProbeResult, divergence: Divergence) -> str:
        if not self._exact.covers(result.kind.value, result.under_load):
            return ""
        if not divergence.zero and not self._exactly_corrupt(result.stream):
            return f"exact mode: a difference of {divergence.max_abs:.3g} nats"
        if result.control is not None and not result.control.zero:
            return f"exact mode: the control differs by {result.control.max_abs:.3g} nats"
        return ""

    def _evidence_reason(self, result: ProbeResult, divergence: Divergence) -> str:
        book, score = self._book(result.kind), divergence.score
        bounds = book.calibration.bounds
        if bounds is None:
            early = book.wants_early_pair(result.stream, score)
            return (
                f"score {score:.3g} is over twice that of every control of this kind so far" if early else ""
            )
        reaches = self._evidence.reaches_bar(result.stream, score, bounds)
        return f"score {score:.3g} brings the evidence to the bar" if reaches else ""

    # What the caller hands in

    def observe(self, result: ProbeResult) -> tuple[Alarm, ...]:
        """Take one probe in and return the alarms that it newly made. Invalid probes teach nothing.

        Raises ValueError for a valid probe without a divergence.
        """
        before = len(self._alarms)
        if result.outcome.hard_alarm:
            self._hard_alarm(result)
        elif result.valid:
            self._observe_valid(result)
        self._alarms[before:] = [_with_the_pair(result, alarm) for alarm in self._alarms[before:]]
        return tuple(self._alarms[before:])

    def add_control(self, kind: ResumeKind | str, control: Divergence, under_load: bool) -> tuple[Alarm, ...]:
        """Take in a control made without a probe. New alarms come of the floor, or of probes that waited."""
        before = len(self._alarms)
        book = self._book(kind)
        name = ResumeKind(kind).value
        in_force = self._exact.covers(name, under_load)
        self._exact.add_control(name, control, under_load)
        if in_force and not control.zero:
            why = f"left exact mode: a control differed from its cold pass by {control.max_abs:.3g} nats"
            self._start_over(name, why)
        if book.add_control(control, under_load):
            self._take_waiting(book)
        self._check_floor(name, book)
        self._check_onsets(name, book)
        return tuple(self._alarms[before:])

    def refuse_control(self, kind: ResumeKind | str, why: str) -> None:
        """Remember that a wanted control without a probe could not be made, and why."""
        self._book(kind).refuse_control(why)

    def add_cold_repeat(self, repeat: Divergence, under_load: bool) -> None:
        """Take in a second cold pass against the first. One that differs ends exact mode, if in force."""
        in_force = self._exact.anywhere()
        self._cold_k3.add(repeat.k3)
        self._cold_scores.add(repeat.score)
        self._exact.add_cold(repeat, under_load)
        if in_force and not repeat.zero:
            why = (
                f"left exact mode: a repeated cold pass differed by {repeat.max_abs:.3g} nats from the first"
            )
            self._exact.leave(why)
            for kind in self._books:
                self._start_over(kind, why)

    def _start_over(self, kind: str, why: str) -> None:
        """A kind leaves exact mode: what it learned while the server repeated itself holds no more."""
        self._evidence.restart(kind)
        self._books[kind].recalibrate(self.settings.p0_max, why)

    def _observe_valid(self, result: ProbeResult) -> None:
        divergence = result.divergence
        if divergence is None:
            raise ValueError(f"probe {result.number} is valid but has no divergence")
        book = self._book(result.kind)
        book.probes += 1
        self._judge_exactly(result)
        for alarm in self._watch.observe(result):
            self._alarms.append(alarm)
        if result.cold_repeat is not None:
            self.add_cold_repeat(result.cold_repeat, result.under_load)
        self._take_score(result, divergence, book)
        if result.control is not None:
            self.add_control(result.kind, result.control, result.under_load)
        elif result.control_note:
            book.refuse_control(result.control_note)

    def _take_score(self, result: ProbeResult, divergence: Divergence, book: KindBook) -> None:
        cold = result.confirmation_cold or result.cold_repeat
        sighting = Sighting(
            number=result.number,
            stream=result.stream,
            score=divergence.score,
            pair_score=None if result.confirmation is None else result.confirmation.score,
            cold_score=None if cold is None else cold.score,
        )
        bounds = book.calibration.bounds
        if bounds is None:
            book.wait(sighting)
        else:
            self._append(self._evidence.take(sighting, bounds))
        share = book.paired.share
        if result.control is not None and share is not None:
            worse = looks_worse(divergence.score, result.control.score)
            self._append(self._evidence.take_pair(result.number, result.stream, worse, share))

    def _take_waiting(self, book: KindBook) -> None:
        """Probes made while their kind was calibrating, in their order, now that bounds hold."""
        bounds = book.calibration.bounds
        while bounds is not None and book.waiting:
            self._append(self._evidence.take(book.waiting.popleft(), bounds))

    def _append(self, alarm: Alarm | None) -> None:
        if alarm is not None:
            self._alarms.append(alarm)

    def _latch(self, alarm: Alarm | None) -> None:
        """Append an alarm of a channel that says each thing once per stream, and count what follows."""
        if alarm is not None:
            key = _latch_key(alarm.channel, alarm.verdict, alarm.stream)
            self._latched[key] = self._latched.get(key, 0) + 1
            if self._latched[key] == 1:
                self._alarms.append(alarm)

    def _hard_alarm(self, result: ProbeResult) -> None:
        channel = result.outcome.value.replace("_", "-")
        evidence = result.detail or "the probe gave no detail"
        probes = (result.number,)
        self._latch(Alarm(Verdict.CORRUPT, channel, result.stream, result.shape, evidence, probes))

    def _judge_exactly(self, result: ProbeResult) -> None:
        if not self.settings.deterministic:
            return
        covered = self._exact.covers(result.kind.value, result.under_load)
        finding = self._exact.judge(result)
        if finding is not Finding.UNREPEATED or not self._exactly_corrupt(result.stream):
            self._latch(probe_alarm(result, finding))
        if covered:
            self._latch(control_alarm(result))

    def _exactly_corrupt(self, stream: str) -> bool:
        """Whether a stream's exact alarm stands; then nobody repeats cold passes for it any more."""
        return _latch_key("exact", Verdict.CORRUPT, stream) in self._latched

    def _check_floor(self, kind: str, book: KindBook) -> None:
        stream = f"*/*/{kind}"
        if _latch_key("control-floor", Verdict.SUSPECT, stream) in self._latched:
            return
        control, cold = book.control_k3, self._cold_k3
        words = control_floor_reason(control.median(), len(control), cold.median(), len(cold))
        if words:
            self._latch(Alarm(Verdict.SUSPECT, "control-floor", stream, "*", words, ()))

    def _check_onsets(self, kind: str, book: KindBook) -> None:
        stream = f"*/*/{kind}"
        standing = ("control-floor", "control-onset")
        if any(_latch_key(channel, Verdict.SUSPECT, stream) in self._latched for channel in standing):
            return
        words = control_onset_reason(book.onsets)
        if words:
            self._latch(Alarm(Verdict.SUSPECT, "control-onset", stream, "*", words, ()))

    # What it has to say

    def report(self) -> DetectorReport:
        """Everything there is to say now. CLEAN only if every kind with at least a handful of probes is
        calibrated.
        """
        kinds = {kind: self._books[kind] for kind in sorted(self._books)}
        evidence = self._evidence
        channels = evidence.channels()
        judged = any(evidence.main.streams())
        return DetectorReport(
            verdict=self._verdict(),
            alarms=tuple(self._alarms),
            kinds=tuple(
                kind_calibration(
                    k, book, self._exact, self.settings.deterministic, self._cold_scores.median()
                )
                for k, book in kinds.items()
            ),
            log_evidence={stream: evidence.main.log_stream(stream) for stream in evidence.main.streams()},
            log_bar=evidence.log_bar,
            log_sum=evidence.main.log_sum() if judged else None,
            log_sum_paired=evidence.paired.log_sum() if evidence.paired.streams() else None,
            log_channels=channels,
            statement=guarantee(
                self.settings,
                [
                    KindGuarantee(k, self._exact.in_force(k), book.calibration.bounds, book.paired.share)
                    for k, book in kinds.items()
                ],
            ),
            reasons=tuple(
                reasons(self._alarms, self._latched, kinds, self._exact, self._watch.unrepeated),
            ),
        )

    def _verdict(self) -> Verdict:
        worst = {alarm.verdict for alarm in self._alarms}
        for verdict in (Verdict.CORRUPT, Verdict.SUSPECT):
            if verdict in worst:
                return verdict
        probed = [kind for kind, book in self._books.items() if book.probes]
        if not any(map(self._ready, probed)) or self._holding_back():
            return Verdict.CALIBRATING
        return Verdict.CLEAN

    def _holding_back(self) -> list[str]:
        return [
            kind
            for kind, book in self._books.items()
            if book.probes >= HANDFUL and _waited_for(ResumeKind(kind)) and not self._ready(kind)
        ]

    def acknowledge(self, alarm: Alarm) -> None:
        """A person has seen this alarm: take it out and start the evidence of its stream afresh.

        Raises ValueError for an alarm that does not stand.
        """
        if alarm not in self._alarms:
            raise ValueError(f"no such alarm stands: {alarm.channel} on {alarm.stream}")
        self._alarms.remove(alarm)
        self._evidence.forget(alarm.stream)
        self._watch.forget(alarm.stream)
        for key in [key for key in self._latched if key.split(" ", 2)[2] == alarm.stream]:
            del self._latched[key]

    def reinstate(self, alarm: Alarm) -> None:
        """Let an alarm stand that was raised earlier. One that stands already is left as it is."""
        if alarm not in self._alarms:
            self._alarms.append(alarm)
            self._latched[_latch_key(alarm.channel, alarm.verdict, alarm.stream)] = 1

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """The alarms that stand, oldest first."""
        return tuple(self._alarms)

    # What outlives the process

    def state(self) -> dict[str, Any]:
        """Everything learned and latched, as values that JSON can hold."""
        return {
            "version": STATE_VERSION,
            "books": {kind: book.state() for kind, book in self._books.items()},
            "exact": self._exact.state(),
            "watch": self._watch.state(),
            "evidence": self._evidence.state(),
            "cold_k3": self._cold_k3.values(),
            "cold_scores": self._cold_scores.values(),
            "alarms": [
                [a.verdict.value, a.channel, a.stream, a.evidence, list(a.probes)] for a in self._alarms
            ],
            "latched": dict(self._latched),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` gave, in place of everything held.

        Raises ValueError for a state of another version.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"stored detector state has version {state.get('version')}, this soak reads {STATE_VERSION}: "
                f"calibrate afresh"
            )
        self._books = {k: KindBook.restored(held, self.settings.p0_max) for k, held in state["books"].items()}
        self._exact.restore(state["exact"])
        self._watch.restore(state["watch"])
        self._evidence.restore(state["evidence"])
        self._cold_k3 = LatestMedian(values=state["cold_k3"])
        self._cold_scores = LatestMedian(values=state["cold_scores"])
        self._alarms = [
            Alarm(Verdict(verdict), channel, stream, shape_of(stream), evidence, tuple(probes))
            for verdict, channel, stream, evidence, probes in state["alarms"]
        ]
        self._latched = dict(state["latched"])


def _with_the_pair(result: ProbeResult, alarm: Alarm) -> Alarm:
    """An alarm about an invariance pair says which two ways to the same answer disagreed."""
    kind = ResumeKind(alarm.stream.rpartition("/")[2])
    if not kind.invariance:
        return alarm
    here = f" (here {result.ways})" if alarm.stream == result.stream and result.ways else ""
    return replace(alarm, evidence=f"{PAIR_WORDS[kind]}{here}: {alarm.evidence}")


def _waited_for(kind: ResumeKind) -> bool:
    """Whether a run is not CLEAN before this kind is calibrated: invariance pairs are too few for that."""
    return kind.controllable and not kind.invariance


def _latch_key(channel: str, verdict: Verdict, stream: str) -> str:
    return f"{channel} {verdict.value} {stream}"
