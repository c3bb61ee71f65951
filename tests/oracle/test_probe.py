from __future__ import annotations

from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind


def test_a_result_claims_nothing_that_nobody_measured() -> None:
    fresh = ProbeResult(1, "shared-prefix", ResumeKind.PREFILL, ProbeOutcome.VALID)
    assert (fresh.tokens_spent, fresh.resume_boundary, fresh.victim_tokens) == (0, 0, 0)
    assert not fresh.under_load
    assert [fresh.divergence, fresh.control, fresh.cold_repeat, fresh.amnesia] == [None] * 4
    assert fresh.warm.size == fresh.cold.size == fresh.control_off.size == 0
