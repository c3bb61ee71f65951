"""What an experiment comes to: steady state apart from actions, exit codes in their order, words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from soak.chaos.afterwards import Condition
from soak.chaos.conducting import Conducted
from soak.chaos.ledger import Entry, Undo
from soak.chaos.phases import DURING, STEADY, Phases
from soak.chaos.report import ChaosExit, build_report, exit_of, hypothesis_lines, report_words
from soak.chaos.schedule import schedule
from soak.chaos.spec import Experiment
from soak.chaos.undoing import Undone
from soak.drive.deed import DONE, FAILED, UNDONE, Deed
from soak.drive.observation import Observation
from soak.plan.item import Item
from soak.sglang.exchange import Answer, Outcome
from tests.export.samples import observation

EXPERIMENT = Experiment.model_validate(
    {
        "experiment": "mine",
        "targets": {"server": {"url": "http://127.0.0.1:1", "disruptive": True}},
        "hypothesis": {"error_share": 0.1, "ttft_p99": "2s", "during": {"error_share": 0.5}},
        "actions": [{"do": "flush", "at": "1s"}, {"do": "pause", "mode": "abort", "at": "2s", "for": "1s"}],
    }
)


def seen(sent_s: float, finished_s: float, outcome: Outcome = Outcome.OK, ttft_s: float = 0.5) -> Observation:
    item: Item = observation().item
    answer = Answer("r", outcome, sent_s=sent_s, finished_s=finished_s, first_token_s=sent_s + ttft_s)
    return Observation(item, 0, np.empty(0, np.int32), sent_s, answer)


def phases(*answers: tuple[float, float, Outcome], cool_down_s: float = 1.0) -> Phases:
    """An action in force from second 10 to 20."""
    made = Phases(cool_down_s)
    number = made.begun(10.0)
    made.ended(number, 20.0)
    for sent_s, finished_s, outcome in answers:
        made.observe(seen(sent_s, finished_s, outcome), in_gap=False)
    return made


@pytest.mark.parametrize(
    ("sent_s", "finished_s", "phase"),
    [
        (1, 9, STEADY),
        (9, 11, DURING),
        (12, 13, DURING),
        (19, 30, DURING),
        (20.5, 22, DURING),
        (21.5, 22, STEADY),
    ],
)
def test_an_answer_counts_to_an_action_that_it_met(sent_s: float, finished_s: float, phase: str) -> None:
    made = phases((sent_s, finished_s, Outcome.OK))
    assert made.figures[phase].answers == 1
    assert sum(figures.answers for figures in made.figures.values()) == 1


def test_what_we_took_back_is_no_error_and_what_a_gap_took_stops_nothing() -> None:
    made = phases(*[(1, 2, Outcome.OK), (1, 2, Outcome.TAKEN_BACK), (1, 2, Outcome.TIMED_OUT)])
    assert made.figures[STEADY].error_share == pytest.approx(1 / 3)
    assert made.recent_error_share(4) is None
    assert made.recent_error_share(3) == pytest.approx(1 / 3)
    for _ in range(9):
        made.observe(seen(1, 2, Outcome.DISCONNECTED), in_gap=True)
    assert made.recent_error_share(3) == pytest.approx(1 / 3)
    assert made.figures[STEADY].lost == 9


def test_an_action_in_force_has_no_end_yet() -> None:
    made = Phases(1.0)
    made.begun(10.0)
    made.observe(seen(1000, 1001), in_gap=False)
    assert made.figures[DURING].answers == 1
    assert made.figures[STEADY].ttft_p99_s is None
    assert made.figures[DURING].ttft_p99_s == pytest.approx(0.5)


def test_the_hypothesis_is_held_against_its_phase() -> None:
    good = [(1.0, 2.0, Outcome.OK)] * 9
    made = phases(*good, (1, 2, Outcome.TIMED_OUT), (12, 13, Outcome.OK), (12, 13, Outcome.TIMED_OUT))
    lines = {line.what: line.held for line in hypothesis_lines(EXPERIMENT, made, "CALIBRATING")}
    assert lines == {
        "errors in steady state": True,
        "time to first token in steady state, p99": True,
        "errors while an action was in force": True,
        "verdict": True,
    }
    made.observe(seen(1, 2, Outcome.TIMED_OUT), in_gap=False)
    assert not hypothesis_lines(EXPERIMENT, made, "CLEAN")[0].held
    assert hypothesis_lines(EXPERIMENT, Phases(1.0), "CLEAN")[0].held is None


@pytest.mark.parametrize(
    ("verdict", "held"), [("CLEAN", True), ("CALIBRATING", None), ("VACUOUS", None), ("SUSPECT", False)]
)
def test_clean_is_clean(verdict: str, held: bool | None) -> None:
    wanted = EXPERIMENT.model_copy(
        update={"hypothesis": EXPERIMENT.hypothesis.model_copy(update={"verdict": "CLEAN"})}
    )
    assert hypothesis_lines(wanted, Phases(1.0), verdict)[-1].held is held


def result(**changes: Any) -> Conducted:
    deeds = {
        0: Deed(0, "flush", "server", 1.0, 1.1, {}, DONE),
        1: Deed(1, "pause", "server", 2.0, 3.0, {}, DONE),
    }
    conditions = [Condition("serves", True, "well"), Condition("old-prefixes-true", True, "true", True)]
    return Conducted(**{"deeds": deeds, "conditions": conditions, "whole": True, **changes})


HELD = phases(*[(1, 2, Outcome.OK), (12, 13, Outcome.OK)])


def code(found: Conducted, verdict: str = "CALIBRATING", soak: int = 3, *, left: bool = False) -> ChaosExit:
    return exit_of(hypothesis_lines(EXPERIMENT, HELD, verdict), found, verdict, soak, left=left)


def broken(name: str, held: bool | None = False, *, of_memory: bool = False) -> Conducted:
    return result(conditions=[Condition(name, held, "", of_memory)])


CASES: list[tuple[ChaosExit, ChaosExit]] = [
    (ChaosExit.HELD, code(result())),
    (ChaosExit.UNTRUE, code(result(), "CORRUPT", 1)),
    (ChaosExit.UNTRUE, code(broken("old-prefixes-true", of_memory=True))),
    (ChaosExit.MISSED, code(broken("old-prefixes-cold"))),
    (ChaosExit.TARGET, code(broken("serves"))),
    (ChaosExit.TARGET, code(result(), soak=4)),
    (ChaosExit.INTERRUPTED, code(result(whole=False), soak=130)),
    (ChaosExit.INCONCLUSIVE, code(broken("retracted-like-cold", None, of_memory=True))),
    (ChaosExit.INCONCLUSIVE, code(result(stopped="errors"))),
    (ChaosExit.INCONCLUSIVE, code(result(whole=False))),
    (ChaosExit.INCONCLUSIVE, code(result(deeds={}))),
    (ChaosExit.INCONCLUSIVE, code(result(deeds={0: Deed(0, "flush", "s", 1.0, 2.0, {}, FAILED)}))),
    (ChaosExit.IN_FORCE, code(result(), "CORRUPT", 1, left=True)),
]


@pytest.mark.parametrize(("wanted", "came"), CASES)
def test_exit_codes(wanted: ChaosExit, came: ChaosExit) -> None:
    assert came == wanted


def test_the_report_says_what_was_done_and_what_was_not() -> None:
    deeds = {0: Deed(0, "flush", "server", 11.0, 11.5, {"within_ms": 9}, UNDONE, "ended")}
    found = result(began_s=10.0, deeds=deeds, stopped="the verdict is CORRUPT")
    left = Undone("mine", Entry(1, "pause", "server", Undo("continue"), 0.0), False, "no answer")
    summary = {"verdict": "CORRUPT", "exit_code": 1, "simulator": True, "reasons": ["bad"]}
    report = build_report(EXPERIMENT, schedule(EXPERIMENT), found, HELD, summary, undone=[left])
    assert report["done"][0]["began_s"] == 1.0
    assert report["done"][1] == {"number": 1, "name": "pause", "outcome": "not begun"}
    words = report_words(report)
    for part in (
        "exit code 6",
        "soak's own simulator",
        "Stopped: the verdict is CORRUPT",
        "flush on server for 0.5 s: undone, ended",
        "pause on -: not begun",
        "held: errors in steady state: 0.00% (0 of 1); wanted at most 10.00%",
        "BROKEN: verdict",
        "held: serves: well",
        "STILL IN FORCE: pause on server: no answer",
    ):
        assert part in words
