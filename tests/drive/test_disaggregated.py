"""Where prefill and decode run apart, what cannot be reached there is no condition of a clean run."""

from __future__ import annotations

import pytest

from soak.detect.conclude import conclude
from soak.detect.verdict import DetectorReport, Verdict
from soak.drive.coverage import Coverage
from soak.drive.disaggregated import cannot_apply
from soak.plan.geometry import Geometry


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_nothing_resumes_from_what_decode_has_written(side: str) -> None:
    coverage = Coverage(Geometry(), ["decode-seeded", "pressure"])
    coverage.rule_out(cannot_apply({"disaggregation_mode": side}))
    told = {entry.name: entry for entry in coverage.report()}
    assert told["decode-written-resume"].state == "not-applicable"
    assert told["retraction"].state == "not-applicable"
    assert "decode side" in told["retraction"].note
    verdict, reasons = conclude(DetectorReport(verdict=Verdict.CLEAN), list(told.values()), 20, 20)
    assert (verdict, reasons) == (Verdict.CLEAN, [])


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"disaggregation_mode": "null"},
        {"disaggregation_mode": "decode", "disaggregation_decode_enable_radix_cache": True},
    ],
)
def test_elsewhere_all_of_it_is_still_asked_for(said: dict[str, object]) -> None:
    assert cannot_apply(said) == {}
