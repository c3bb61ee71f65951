"""The page: every line, its mark and its step, in a width that fits, and nothing that moves a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from soak.doctor.finding import Group, Line, Mark, Report, State
from soak.doctor.page import headline, page

LINES = st.builds(
    Line, st.text(max_size=20), st.sampled_from(Mark), st.text(max_size=300), st.text(max_size=99)
)


def report(*lines: Line, usable: bool = True) -> Report:
    return Report("http://127.0.0.1:30000", (Group("Cache", lines),), ("do this",), usable)


def test_the_state_is_that_of_the_worst_line() -> None:
    ok, warn, unknown, bad = (Line("a", mark, "w", "s") for mark in Mark)
    assert report(ok, warn).state is State.READY
    assert report(ok, unknown, warn).state is State.PARTLY
    assert report(unknown, bad, warn).state is State.UNFIT
    assert report(ok, usable=False).state is State.UNUSABLE
    assert headline(report(ok, warn, warn, unknown, bad)) == (
        "http://127.0.0.1:30000: NOT READY, 1 bad, 1 unknown, 2 warnings"
    )


def test_steps_stand_under_their_lines_and_at_the_end() -> None:
    shown = page(report(Line("radix-cache", Mark.BAD, "off", "turn it on"))).splitlines()
    assert shown[3].split() == ["BAD", "radix-cache", "off"]
    assert shown[4].strip() == "-> turn it on"
    assert shown[-1].strip() == "do this"


@given(st.lists(LINES, max_size=5), st.integers(20, 140))
def test_any_words(lines: list[Line], width: int) -> None:
    shown = page(report(*lines), width)
    assert all(c.isprintable() or c == "\n" for c in shown)


@given(st.integers(0, 80), st.integers(60, 140))
def test_lines_stay_in_the_width(words: int, width: int) -> None:
    shown = page(report(Line("cost", Mark.WARN, "tokens " * words, "lower it " * words)), width)
    assert max(map(len, shown.split("\n")[1:])) <= width
