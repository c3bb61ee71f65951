from __future__ import annotations

import pytest

from soak.detect.conclude import conclude
from soak.detect.verdict import DetectorReport, Verdict
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState


def conjunction(
    state: CoverageState, name: str = "co-batched prefill", by: str = "chunked-burst"
) -> ConjunctionCoverage:
    return ConjunctionCoverage(name=name, state=state, count=0, last_s=None, probes=0, reached_by=by)


CLEAN = DetectorReport(Verdict.CLEAN, reasons=("said by the detectors",))


def test_clean_with_all_that_was_required() -> None:
    reached = [conjunction(CoverageState.PRESUMED), conjunction(CoverageState.CONFIRMED)]
    assert conclude(CLEAN, reached, 20, 20) == (Verdict.CLEAN, ["said by the detectors"])


def test_too_few_probes_are_vacuous() -> None:
    verdict, reasons = conclude(CLEAN, [], 19, 20)
    assert verdict is Verdict.VACUOUS
    assert "19 valid probes, 20 needed" in reasons[-1]


@pytest.mark.parametrize("state", [CoverageState.NOT_REACHED, CoverageState.UNOBSERVABLE])
def test_what_was_not_reached_is_named_with_the_shape_that_reaches_it(state: CoverageState) -> None:
    verdict, reasons = conclude(
        CLEAN, [conjunction(CoverageState.PRESUMED, "other"), conjunction(state)], 20, 20
    )
    assert verdict is Verdict.VACUOUS
    assert len(reasons) == 2
    assert "co-batched prefill" in reasons[1] and "chunked-burst" in reasons[1]


def test_what_no_shape_reaches_is_said_too() -> None:
    _, reasons = conclude(CLEAN, [conjunction(CoverageState.NOT_REACHED, by="")], 20, 20)
    assert "no shape reaches it yet" in reasons[-1]


def test_what_cannot_be_here_is_no_condition() -> None:
    assert conclude(CLEAN, [conjunction(CoverageState.NOT_APPLICABLE)], 20, 20)[0] is Verdict.CLEAN


@pytest.mark.parametrize("verdict", [Verdict.CORRUPT, Verdict.SUSPECT, Verdict.CALIBRATING])
def test_what_the_detectors_say_wins_and_the_rest_is_still_told(verdict: Verdict) -> None:
    said, reasons = conclude(DetectorReport(verdict), [conjunction(CoverageState.NOT_REACHED)], 0, 20)
    assert said is verdict
    assert len(reasons) == 2
