from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from soak.detect.verdict import DetectorReport, Verdict
from soak.export.panel import bar, clock, evidence_share, panel, sparkline
from soak.export.snapshot import Snapshot, take_snapshot
from soak.export.tally import RECENT, Tally
from soak.export.terminal import Terminal, plain_line
from tests.export.samples import COVERAGE, filled_tally, probe, report


def snapshot(verdict: Verdict = Verdict.CORRUPT, **changes: Any) -> Snapshot:
    arguments: dict[str, Any] = {
        "elapsed_s": 61.0, "duration_s": 90.0, "target": "http://127.0.0.1:30000", "seed": 7,
        "asked": 22, "delivered": 21, "in_flight": 3, "events": ["0:12 first valid probe"],
    }  # fmt: skip
    return take_snapshot(filled_tally(), report(verdict), COVERAGE, **(arguments | changes))


def drawn(shown: Snapshot, width: int = 100, encoding: str = "utf-8") -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=out, width=width)
    console.print(panel(shown, console))
    out.seek(0)
    return out.read()


def test_a_snapshot_holds_what_the_run_holds() -> None:
    shown = snapshot()
    assert shown.verdict is Verdict.CORRUPT
    assert shown.probes_valid == 20
    assert shown.probes_invalid == {"cold_hit": 1, "non_finite": 1}
    assert shown.log_evidence == 3.5
    assert shown.log_bar == 13.8
    assert len(shown.k3) == len(shown.max_abs) == 20


def test_coverage_can_overrule_the_detectors_verdict() -> None:
    arguments: dict[str, Any] = {
        "elapsed_s": 1.0, "duration_s": None, "target": "t", "seed": 1,
        "asked": 0, "delivered": 0, "in_flight": 0,
    }  # fmt: skip
    shown = take_snapshot(Tally(), report(Verdict.CLEAN), (), verdict=Verdict.VACUOUS, **arguments)
    assert shown.verdict is Verdict.VACUOUS
    nothing = take_snapshot(Tally(), DetectorReport(Verdict.CALIBRATING), (), **arguments)
    assert (nothing.log_evidence, nothing.log_bar) == (None, None)


def test_recent_comparisons_are_bounded() -> None:
    tally = Tally()
    for number in range(3 * RECENT):
        tally.observe_probe(probe(number=number))
    assert len(tally.recent_k3) == len(tally.recent_control_k3) == RECENT


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_panel_shows_all_and_keeps_to_the_width(width: int) -> None:
    text = drawn(snapshot(), width)
    assert max(map(len, text.splitlines())) <= width
    for word in (
        "CORRUPT",
        "evidence",
        "k3",
        "control",
        "probes",
        "load",
        "coverage",
        "retraction",
        "seed 7",
    ):
        assert word in text
    if width >= 80:
        assert "3.5 of 13.8 nats" in text
        assert "21 of 22 sent (95.4%)  3 in flight  20 ok  1 timed out" in text
        assert "20 valid  invalid: 1 cold hit, 1 non finite  1 victims evicted" in text
        assert "first valid probe" in text


def test_the_panel_needs_no_more_than_the_terminals_characters() -> None:
    text = drawn(replace(snapshot(), events=("x" * 300,)), encoding="ascii")
    assert "3.5 of 13.8 nats" in text
    assert text.isascii()


def test_an_empty_snapshot_can_be_drawn() -> None:
    text = drawn(Snapshot(Verdict.CALIBRATING, 0.0, "http://127.0.0.1:1", 1))
    assert "no bar yet" in text
    assert "no valid probe yet" in text


@given(st.lists(st.floats(min_value=0.0, allow_nan=False), max_size=80), st.integers(0, 40), st.booleans())
def test_sparklines_take_any_divergence(values: Sequence[float], width: int, ascii_only: bool) -> None:
    line = sparkline(values, width, ascii_only=ascii_only)
    assert len(line) == min(len(values), width)
    assert line.isascii() or not ascii_only


def test_sparkline_scale() -> None:
    assert sparkline((0.0, 1e-30, 1e-8, 9.9, math.inf), 5) == "·▁▁██"
    assert sparkline((1e-7, 1e-5, 1e-3, 1e-1), 4) == "▁▃▅▇"


def test_evidence_on_its_way_to_the_bar() -> None:
    assert evidence_share(5.0, None) is None
    assert evidence_share(None, 10.0) == 0.0
    assert evidence_share(-math.inf, 10.0) == 0.0
    assert evidence_share(5.0, 10.0) == 0.5
    assert evidence_share(99.0, 10.0) == 1.0
    assert bar(0.5, 10).plain == "━━━━━─────"
    assert bar(1.0, 4, ascii_only=True).plain == "####"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(7, "0:07"), (754, "12:34"), (11109, "3:05:09"), (529509, "6d 3:05:09"), (-1, "0:00")],
)
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_plain_line() -> None:
    assert plain_line(snapshot()) == (
        "1:01 CORRUPT | probes 20 valid, 2 invalid | k3 4.5e-07, max |d| 0.001 | "
        "load 21/22 (95.4%), 3 in flight | 1 timed out | coverage 1/2"
    )


def test_without_a_terminal_a_line_now_and_then_and_on_a_new_verdict() -> None:
    out, now = io.StringIO(), [0.0]
    with Terminal(out, plain_every_s=5.0, now=lambda: now[0]) as screen:
        for second in range(12):
            now[0] = float(second)
            screen.show(snapshot(Verdict.CLEAN if second < 7 else Verdict.CORRUPT))
        screen.say("done")
    lines = out.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["1:01 CLEAN", "1:01 CLEAN", "1:01 CORRUPT", "done"]
    assert "\x1b" not in out.getvalue()


def test_long_lines_are_not_broken() -> None:
    out = io.StringIO()
    Terminal(out).say("word " * 100)
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_is_redrawn_in_place() -> None:
    out = io.StringIO()
    with Terminal(out, live=True) as screen:
        screen.show(snapshot())
        screen.say("an event that stays")
        screen.show(snapshot())
    assert "\x1b[" in out.getvalue()
    assert "CORRUPT" in out.getvalue()
    assert "an event that stays" in out.getvalue()


def test_quiet_is_quiet() -> None:
    out = io.StringIO()
    with Terminal(out, quiet=True, live=True) as screen:
        screen.show(snapshot())
        screen.say("nothing")
    assert out.getvalue() == ""


class Hangup(io.StringIO):
    """A stream whose reader goes away after the first write."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error, self.refused = error, 0

    def write(self, text: str) -> int:
        if self.getvalue():
            self.refused += 1
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_a_soak_outlives_whoever_watched_it(live: bool, error: OSError) -> None:
    out = Hangup(error)
    with Terminal(out, live=live, plain_every_s=0.0) as screen:
        for _ in range(5):
            screen.show(snapshot())
            screen.say("still here")
    assert out.refused == 1


def test_a_servers_words_cannot_steer_the_terminal() -> None:
    out = io.StringIO()
    with Terminal(out) as screen:
        screen.say("the server said \x1b[2J\nand more")
    assert out.getvalue() == "the server said  [2J\nand more\n"
    assert "\x1b" not in drawn(replace(snapshot(), events=("\x1b[2J",), alarms=("\x1b[2J",)))
