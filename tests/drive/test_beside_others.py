"""What a run without load may say of other people's traffic: no more than the server's counters do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.drive.beside_others import REQUIRED_BESIDE_OTHERS, SIGNS, OthersEnded
from soak.drive.conjunctions import CONJUNCTIONS
from soak.drive.coverage import Coverage
from soak.drive.coverage_state import CoverageState
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.plan.geometry import Geometry
from soak.sglang.server_metrics import ServerMetrics
from soak.sglang.session import Ours

GEOMETRY = Geometry(chunk=256)


def coverage() -> Coverage:
    return Coverage(GEOMETRY, ["planted"])


def state(of: Coverage) -> dict[str, CoverageState]:
    return {c.name: c.state for c in of.report()}


def scraped(running: float, prompts: float = 0, cached: float = 0, retracted: float = 0) -> ServerMetrics:
    return ServerMetrics(
        running=running,
        prompt_tokens_total=prompts,
        cached_tokens_total={"device": cached},
        retracted_total=retracted,
    )


def test_without_counters_others_are_unobservable_and_ours_not_reached() -> None:
    blind = coverage()
    blind.observe_server(None)
    blind.observe_server(ServerMetrics())
    told = state(blind)
    of_users = {c.name for c in CONJUNCTIONS if c.by_users}
    assert set(told) == {"planted-resume", "planted-decode-resume", "beside-others", *of_users}
    reached_by_us = {"planted-resume", "planted-decode-resume"}
    assert {name for name, s in told.items() if s is CoverageState.NOT_REACHED} == reached_by_us
    assert {s for name, s in told.items() if name not in reached_by_us} == {CoverageState.UNOBSERVABLE}


def test_an_idle_server_was_not_used_by_others() -> None:
    idle = coverage()
    for ours in (0, 2, 2):
        idle.observe_server(scraped(ours, prompts=1000 * ours), Ours(ours))
    told = state(idle)
    assert {told[name] for name in SIGNS if name != "host-tier-resume"} == {CoverageState.NOT_REACHED}
    assert told["host-tier-resume"] is CoverageState.UNOBSERVABLE
    assert told["branch-resume"] is CoverageState.UNOBSERVABLE


@pytest.mark.parametrize(
    ("before", "now", "reached"),
    [
        ((3, 0, 0, 0), (1, 0, 0, 0), {"beside-others"}),
        ((3, 0, 0, 0), (3, 200, 0, 0), {"beside-others", "co-batched-prefill", "narrow-after-wide-prefill"}),
        (
            (3, 0, 0, 0),
            (3, 300, 9, 1),
            {
                "beside-others", "co-batched-prefill", "narrow-after-wide-prefill", "prefix-hit",
                "retraction", "co-batched-chunked-prefill",
            },
        ),
        ((0, 0, 0, 0), (3, 300, 9, 0), set()),
    ],
)  # fmt: skip
def test_what_the_counters_say_is_presumed(
    before: tuple[float, ...], now: tuple[float, ...], reached: set[str]
) -> None:
    seen = coverage()
    seen.observe_server(scraped(*before))
    seen.observe_server(scraped(*now))
    assert {name for name, s in state(seen).items() if s is CoverageState.PRESUMED} == reached


def test_one_scrape_shown_twice_is_one_scrape() -> None:
    seen = coverage()
    page = scraped(3)
    seen.observe_server(page)
    seen.observe_server(page)
    assert state(seen)["beside-others"] is CoverageState.NOT_REACHED


def test_probes_confirm_what_they_resumed_from() -> None:
    seen = coverage()
    result = ProbeResult(1, "planted", ResumeKind.DECODE, ProbeOutcome.VALID, resume_boundary=64)
    seen.observe_probe(result)
    told = state(seen)
    assert told["planted-resume"] is told["planted-decode-resume"] is CoverageState.CONFIRMED
    assert set(REQUIRED_BESIDE_OTHERS) <= set(told)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30),
    st.integers(0, 50),
)
def test_requests_of_others_that_ended_are_never_said_too_many(
    steps: list[tuple[int, int, int, bool]], before: int
) -> None:
    """The server may count each of ours at any time between its sending and its answer."""
    known = OthersEnded()
    counted, others, sent, answered, said = before, 0, 0, 0, 0.0
    for begin, end, of_others, late in steps:
        at_the_start = answered
        sent += begin
        ending = min(end, sent - answered)
        counted += of_others + (0 if late else ending)
        others += of_others
        answered += ending
        said += known.look(float(counted), Ours(sent - at_the_start, sent, at_the_start))
        counted += ending if late else 0
        assert said <= others
    assert said >= others - (steps[0][2] if steps else 0) - sent


def test_one_quiet_user_shows_in_what_the_server_has_ended() -> None:
    known, told = OthersEnded(), []
    for second in range(10):  # four of ours a second, one of somebody's every five
        ours = 4 * second
        told.append(known.look(100.0 + ours + second // 5, Ours(1, ours + 1, ours)))
    assert sum(told) == 0, "it may still be one of ours"
    assert known.look(100.0 + 44 + 2, Ours(0, 44, 44)) == 2
    assert known.look(3.0, Ours(0, 44, 44)) == 0, "it was restarted"
    assert known.look(4.0, Ours(0, 44, 44)) == 1
    assert known.look(None, Ours()) == 0
