from dataclasses import replace

import numpy as np

from soak.drive.conjunctions import CONJUNCTIONS
from soak.drive.coverage import Coverage
from soak.drive.coverage_state import CoverageState
from soak.drive.observation import Observation
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.plan.geometry import Geometry
from soak.plan.item import Abort, AbortBy, Item, Prompt, Segment
from soak.plan.shapes import SHAPES
from soak.runners.faults import FAULTS
from soak.sglang.exchange import Answer, Outcome
from soak.sglang.server_metrics import ServerMetrics

EVERYTHING = Geometry(adapters=("a",), grammar=True, host_tier=True)


def seen(
    shape: str,
    *,
    cached: int = 0,
    n: int = 1000,
    step: int = 0,
    prefilling: int = 0,
    batched: bool = False,
    tenant: int | None = None,
    abort: Abort | None = None,
    outcome: Outcome = Outcome.OK,
    retractions: int = 0,
    host: int = 0,
    adapter: int | None = None,
    keyed: int | None = None,
    strict: bool = False,
    text: str | None = None,
    held: bool = False,
    prompts: int = 1,
) -> Observation:
    own = Prompt((Segment("own", 1, 0, 20 if step else n),))
    item = Item(
        3, step, shape, 0, (own,) * prompts, 8,
        parent=step - 1 if step else None, batched=batched, tenant=tenant, abort=abort,
        adapter=adapter, keyed=keyed, strict=strict,
    )  # fmt: skip
    answer = Answer("r", outcome, prompt_tokens=n, cached_tokens=cached, num_retractions=retractions)
    answer.cached_details = {"host": host}
    answer.text = text
    return Observation(item, 0, np.zeros(n, np.int32), 0.0, answer, prefilling, prefilling, held=held)


def probe(shape: str, kind: ResumeKind = ResumeKind.PREFILL, boundary: int = 0) -> ProbeResult:
    return ProbeResult(1, shape, kind, ProbeOutcome.VALID, resume_boundary=boundary, victim_tokens=1000)


def state(coverage: Coverage) -> dict[str, CoverageState]:
    return {c.name: c.state for c in coverage.report()}


def test_nothing_is_reached_by_having_been_planned() -> None:
    coverage = Coverage(EVERYTHING, SHAPES)
    for shape in SHAPES:
        coverage.observe_load(seen(shape))
    assert set(state(coverage)) == {each.name for each in CONJUNCTIONS}
    assert set(state(coverage).values()) == {CoverageState.NOT_REACHED}


def test_the_servers_word_confirms_and_company_only_presumes() -> None:
    coverage = Coverage(replace(EVERYTHING, chunk=256), SHAPES)
    coverage.observe_load(seen("shared-prefix", cached=1))
    coverage.observe_load(seen("long-context", cached=257))
    coverage.observe_load(seen("chunked-burst", prefilling=1))
    coverage.observe_load(seen("decode-seeded", cached=979, step=1))
    coverage.observe_load(seen("co-batched", batched=True))
    coverage.observe_load(seen("branching", cached=7))
    coverage.observe_load(seen("branching", cached=998))
    coverage.observe_load(seen("identical", prefilling=2))
    coverage.observe_load(seen("tenant-ping-pong", cached=64, tenant=1))
    coverage.observe_load(seen("abort-storm", abort=Abort(AbortBy.REQUEST, 500), outcome=Outcome.TAKEN_BACK))
    coverage.observe_load(seen("pressure", retractions=1))
    coverage.observe_load(seen("tier-round-trip", cached=99, host=64))
    coverage.observe_load(seen("canary", prefilling=1))
    coverage.observe_load(seen("strict-json", strict=True, text="{}", prefilling=1))
    coverage.observe_load(seen("adapters", adapter=0))
    coverage.observe_load(seen("adapters", keyed=0))
    coverage.observe_load(seen("pause-queue", held=True, prompts=2))
    coverage.observe_load(seen("abort-load", abort=Abort(AbortBy.REQUEST, 50), outcome=Outcome.TAKEN_BACK))
    assert state(coverage) == {
        "prefix-hit": CoverageState.CONFIRMED,
        "far-context-resume": CoverageState.CONFIRMED,
        "co-batched-chunked-prefill": CoverageState.PRESUMED,
        "decode-written-resume": CoverageState.CONFIRMED,
        "co-batched-prefill": CoverageState.PRESUMED,
        "narrow-after-wide-prefill": CoverageState.NOT_REACHED,
        "branch-resume": CoverageState.CONFIRMED,
        "short-tail-resume": CoverageState.CONFIRMED,
        "identical-together": CoverageState.PRESUMED,
        "tenants-by-turns": CoverageState.CONFIRMED,
        "abort-in-prefill": CoverageState.PRESUMED,
        "abort-in-decode": CoverageState.NOT_REACHED,
        "retraction": CoverageState.CONFIRMED,
        "host-tier-resume": CoverageState.CONFIRMED,
        "canaries-together": CoverageState.PRESUMED,
        "strict-json-together": CoverageState.CONFIRMED,
        "adapters-by-turns": CoverageState.PRESUMED,
        "needle-recalled": CoverageState.NOT_REACHED,
        "queued-together": CoverageState.PRESUMED,
        "retraction-by-pause": CoverageState.NOT_REACHED,
        "abort-in-load-back": CoverageState.PRESUMED,
    }


def test_an_abort_that_came_too_late_reached_nothing() -> None:
    coverage = Coverage(Geometry(), SHAPES)
    coverage.observe_load(seen("abort-storm", abort=Abort(AbortBy.REQUEST, None, 3)))
    assert state(coverage)["abort-in-decode"] is CoverageState.NOT_REACHED
    coverage.observe_load(
        seen("abort-storm", abort=Abort(AbortBy.REQUEST, None, 3), outcome=Outcome.TAKEN_BACK)
    )
    assert state(coverage)["abort-in-decode"] is CoverageState.PRESUMED


def test_a_follow_up_that_resumed_in_the_prompt_reached_nothing() -> None:
    coverage = Coverage(Geometry(), SHAPES)
    coverage.observe_load(seen("decode-seeded", cached=600, step=1))
    assert state(coverage)["decode-written-resume"] is CoverageState.NOT_REACHED


def test_only_conjunctions_of_the_chosen_shapes_are_watched() -> None:
    coverage = Coverage(Geometry(), ["long-context"])
    assert [c.name for c in coverage.report()] == ["far-context-resume"]


def test_valid_probes_are_counted_and_confirm_what_they_went_through() -> None:
    now = [50.0]
    coverage = Coverage(Geometry(chunk=256), SHAPES, lambda: now[0])
    now[0] = 57.0
    coverage.observe_probe(probe("decode-seeded", ResumeKind.DECODE, 900))
    coverage.observe_probe(probe("long-context", boundary=800))
    coverage.observe_probe(probe("chunked-burst", boundary=800))
    coverage.observe_probe(ProbeResult(2, "shared-prefix", ResumeKind.PREFILL, ProbeOutcome.EVICTED))
    told = {c.name: c for c in coverage.report()}
    assert told["decode-written-resume"].state is CoverageState.CONFIRMED
    assert told["decode-written-resume"].last_s == 7.0
    assert told["far-context-resume"].state is CoverageState.CONFIRMED
    assert told["co-batched-chunked-prefill"].probes == 1
    assert told["co-batched-chunked-prefill"].state is CoverageState.NOT_REACHED
    assert told["prefix-hit"].probes == 0


def test_what_a_server_cannot_have_is_not_applicable() -> None:
    coverage = Coverage(Geometry(chunk=8192, context_len=4096), SHAPES)
    coverage.observe_load(seen("chunked-burst", prefilling=1))
    told = {c.name: c for c in coverage.report()}
    assert told["co-batched-chunked-prefill"].state is CoverageState.NOT_APPLICABLE
    assert told["co-batched-chunked-prefill"].count == 0


def test_conjunctions_speak_of_the_known_fault_table() -> None:
    known = {condition.name for fault in FAULTS for condition in fault.conditions}
    for conjunction in CONJUNCTIONS:
        assert set(conjunction.conditions) <= known, conjunction.name
    told = {c.name: c.needed_by for c in Coverage(Geometry(), SHAPES).report()}
    assert "stale-track-rows" in told["co-batched-chunked-prefill"]
    assert told["decode-written-resume"] == ("stale-track-tail",)
    assert "nan-logprob" not in told["prefix-hit"]  # it needs nothing


def scraped(retracted: float | None, host: float | None = None) -> ServerMetrics:
    return ServerMetrics(
        retracted_total=retracted, cached_tokens_total={} if host is None else {"host": host}
    )


def test_the_servers_counters_presume_what_no_answer_tells() -> None:
    coverage = Coverage(Geometry(), ["pressure", "tier-round-trip"])
    coverage.observe_server(None)
    coverage.observe_server(scraped(7))  # from before the run
    assert state(coverage)["retraction"] is CoverageState.NOT_REACHED
    coverage.observe_server(scraped(8))
    coverage.observe_server(scraped(8))
    coverage.observe_server(scraped(None))  # a page that could not be read whole
    coverage.observe_server(scraped(8))
    coverage.observe_server(scraped(0))  # the server was restarted
    (retraction,) = (c for c in coverage.report() if c.name == "retraction")
    assert (retraction.state, retraction.count) == (CoverageState.PRESUMED, 1)


def test_a_counter_that_appears_has_counted() -> None:
    coverage = Coverage(Geometry(), ["pressure", "tier-round-trip"])
    coverage.observe_server(scraped(None))
    coverage.observe_server(scraped(None, host=64))
    assert state(coverage)["host-tier-resume"] is CoverageState.PRESUMED


def test_counters_of_conjunctions_that_nobody_watches_are_left_alone() -> None:
    coverage = Coverage(Geometry(), ["shared-prefix"])
    coverage.observe_server(scraped(0, 0))
    coverage.observe_server(scraped(1, 1))
    assert set(state(coverage)) == {"prefix-hit"}
