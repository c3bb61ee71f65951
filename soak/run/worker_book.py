"""Who of several workers behind one address has answered what: a verdict on each that is named. Pure.

A worker is named by a router's header, or by the rank of a data-parallel server. Where nobody is named there
are no rows, and the run's one verdict is about all of them together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from soak.detect.verdict import DetectorReport, Verdict
from soak.oracle.probe import ProbeOutcome, ProbeResult

_MOST = 256  # workers kept apart; those met later are in the run's verdict alone


class WorkerBook:
    """Probes of each worker by outcome."""

    def __init__(self) -> None:
        self._probes: dict[str, Counter[str]] = {}

    def observe_probe(self, result: ProbeResult) -> None:
        """One probe of a named worker's cache."""
        if result.worker and (result.worker in self._probes or len(self._probes) < _MOST):
            self._probes.setdefault(result.worker, Counter())[result.outcome.value] += 1

    def rows(self, report: DetectorReport, min_valid: int) -> list[dict[str, Any]]:
        """One row a worker, by name: verdict, probes valid and invalid, those answered elsewhere, alarms.

        A worker is alarmed by alarms on its own streams; CLEAN takes ``min_valid`` valid probes of its own.
        """
        rows = []
        for worker, outcomes in sorted(self._probes.items()):
            alarms = [alarm for alarm in report.alarms if f"@{worker}/" in alarm.stream]
            valid = outcomes[ProbeOutcome.VALID.value]
            rows.append(
                {
                    "worker": worker,
                    "verdict": _verdict(report, {a.verdict for a in alarms}, valid >= min_valid).value,
                    "probes_valid": valid,
                    "probes_invalid": outcomes.total() - valid,
                    "elsewhere": outcomes[ProbeOutcome.ELSEWHERE.value],
                    "alarms": [f"{a.verdict.value} by {a.channel} on {a.stream}" for a in alarms],
                }
            )
        return rows


def _verdict(report: DetectorReport, alarmed: set[Verdict], enough: bool) -> Verdict:
    for verdict in (Verdict.CORRUPT, Verdict.SUSPECT):
        if verdict in alarmed:
            return verdict
    if not any(kind.ready for kind in report.kinds):
        return Verdict.CALIBRATING
    return Verdict.CLEAN if enough else Verdict.VACUOUS
