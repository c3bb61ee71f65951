"""From the detectors' report and what was reached to the verdict of a run. It never turns an alarm down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from soak.detect.verdict import DetectorReport, Verdict

REACHED = ("presumed", "confirmed")
NOT_APPLICABLE = "not-applicable"


class Conjunction(Protocol):
    """What is asked of a required conjunction's coverage: its name, state in words, and who reaches it."""

    @property
    def name(self) -> str:
        """Its name, as in ``require_coverage``."""

    @property
    def state(self) -> str:
        """not-applicable, unobservable, not-reached, presumed or confirmed."""

    @property
    def reached_by(self) -> str:
        """The shape that reaches it."""


def conclude(
    report: DetectorReport, coverage: Sequence[Conjunction], valid_probes: int, min_valid: int
) -> tuple[Verdict, list[str]]:
    """The verdict of a run, and why. ``coverage`` holds the required conjunctions only.

    Alarms win over everything. What is not calibrated cannot be clean, and what was not reached was not
    tested. A conjunction that this server cannot have is no condition; one that it gives no way to observe
    is one.
    """
    reasons = list(report.reasons)
    lacking = []
    if valid_probes < min_valid:
        lacking.append(f"{valid_probes} valid probes, {min_valid} needed: run longer, or allow more probes")
    for conjunction in coverage:
        state = str(conjunction.state)
        if state in REACHED or state == NOT_APPLICABLE:
            continue
        shape = (
            f"the shape {conjunction.reached_by} reaches it"
            if conjunction.reached_by
            else "no shape reaches it yet"
        )
        told = "cannot be observed on this server" if state == "unobservable" else "was not reached"
        lacking.append(f"{conjunction.name} {told}: {shape}")
    verdict = report.verdict
    if verdict is Verdict.CLEAN and lacking:
        verdict = Verdict.VACUOUS
    return verdict, reasons + lacking
