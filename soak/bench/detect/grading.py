"""Every rule on the same record: when did it alarm, and by what.

The detectors here are the ones that a soak runs, shown a record probe by probe. A confirming pair is shown to
them only where they ask for it, as the oracle does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.bench.detect.recording import calibrated
from soak.bench.detect.records import CalibrationRecord, Probe
from soak.bench.detect.rules import PUBLIC_THRESHOLDS, Cusum, public_rule
from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm, Verdict
from soak.oracle.probe import ProbeResult


@dataclass(frozen=True, slots=True)
class RunGrade:
    """One run. Numbers count valid probes from 1, hard alarms among them; None: not within the record.

    alarm: first alarm, SUSPECT or CORRUPT; corrupt: first that says CORRUPT; tokens: scored until ``alarm``;
    channel: of the first alarm; alarms: of the whole record, by channel.
    """

    probes: int
    alarm: int | None
    corrupt: int | None
    tokens: int | None
    channel: str
    alarms: dict[str, int]
    public: tuple[int | None, ...]
    cusum: int | None


@dataclass(slots=True)
class Watched:
    """A detector that goes through a record, and what it said."""

    detector: Detector
    counted: int = 0
    tokens: int = 0
    alarms: list[tuple[int, Alarm]] = field(default_factory=list)
    tokens_to_alarm: int | None = None

    def show(self, probe: Probe) -> bool:
        """One probe; whether it counted (it was valid, or a hard alarm)."""
        shown = probe.shown(with_pair=False)
        if not (shown.valid or shown.outcome.hard_alarm):
            return False
        if self.detector.wants_repeat(shown) is not None:
            shown = probe.shown(with_pair=True)
        self.counted += 1
        self.tokens += scored_tokens(shown)
        self.alarms += [(self.counted, alarm) for alarm in self.detector.observe(shown)]
        if self.alarms and self.tokens_to_alarm is None:
            self.tokens_to_alarm = self.tokens
        return True

    @property
    def first_corrupt(self) -> int | None:
        """Number of the probe at which CORRUPT was said first."""
        return next((n for n, alarm in self.alarms if alarm.verdict is Verdict.CORRUPT), None)


def scored_tokens(result: ProbeResult) -> int:
    """Tokens compared in a probe; those of a pass that failed are not counted."""
    return 0 if result.divergence is None else result.divergence.tokens


class Grader:
    """All rules, calibrated once by one record, for any number of runs on that configuration."""

    def __init__(self, calibration: CalibrationRecord, settings: DetectSettings) -> None:
        self._settings = settings
        detector = calibrated(calibration, settings)
        self.at_calibration = detector.alarms
        self.report = detector.report()
        self._state: dict[str, Any] = detector.state()
        scores = [control.divergence.score for control in calibration.controls]
        self._cusum = Cusum(scores, settings.run_length) if len(scores) > 1 else None

    def fresh(self) -> Detector:
        """The detector as calibration left it."""
        detector = Detector(self._settings)
        detector.restore(self._state)
        return detector

    def run(self, probes: Sequence[Probe]) -> RunGrade:
        """Grade one run."""
        watched = Watched(self.fresh())
        for probe in probes:
            watched.show(probe)
        valid = [p for p in probes if p.result.valid]
        k3 = [p.k3 for p in valid]
        scores = list(scores_of(valid))
        counted: dict[str, int] = {}
        for _, alarm in watched.alarms:
            counted[alarm.channel] = counted.get(alarm.channel, 0) + 1
        return RunGrade(
            probes=watched.counted,
            alarm=watched.alarms[0][0] if watched.alarms else None,
            corrupt=watched.first_corrupt,
            tokens=watched.tokens_to_alarm,
            channel=watched.alarms[0][1].channel if watched.alarms else "",
            alarms=counted,
            public=tuple(public_rule(k3, threshold) for threshold in PUBLIC_THRESHOLDS),
            cusum=None if self._cusum is None else self._cusum.first_alarm(scores),
        )


def scores_of(probes: Iterable[Probe]) -> Iterator[float]:
    """Scores of the valid probes among these."""
    for probe in probes:
        if probe.result.divergence is not None:
            yield probe.result.divergence.score


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 90th percentile over runs, a run without an alarm counting as infinitely long."""

    median: float
    p90: float
    found: float


def quantiles(numbers: Sequence[int | None]) -> Quantiles:
    """Of the probes or tokens that runs needed; ``found`` is the share of runs with an alarm."""
    values = np.array([np.inf if n is None else n for n in numbers], dtype=np.float64)
    median, p90 = (float(np.quantile(values, q, method="inverted_cdf")) for q in (0.5, 0.9))
    return Quantiles(median, p90, float(np.mean(np.isfinite(values))))
