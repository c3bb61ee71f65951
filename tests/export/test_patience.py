from __future__ import annotations

import io

import pytest

from soak.export.patience import Patience


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def patience(out: io.StringIO, clock: Clock, *, live: bool, quiet: bool = False) -> Patience:
    return Patience(out, live=live, quiet=quiet, columns=40, clock=clock)


def test_what_is_quick_is_not_talked_about() -> None:
    out, clock = io.StringIO(), Clock()
    waiting = patience(out, clock, live=True)
    waiting.now("quick")
    clock.now_s = 1.9
    waiting.show()
    assert out.getvalue() == ""


def test_on_a_terminal_one_line_is_redrawn_and_wiped() -> None:
    out, clock = io.StringIO(), Clock()
    waiting = patience(out, clock, live=True)
    waiting.now("replay 1 of 3", lambda: f"{int(clock.now_s)} done" + " and more" * 9)
    for clock.now_s in (2.0, 3.0):
        waiting.show()
    waiting.say("reproduced\x1b[2J")
    lines = out.getvalue().split("\r\x1b[2K")
    assert lines[1] == "0:02 replay 1 of 3; 2 done and more and "
    assert len(lines[2]) == 40
    assert lines[3] == "reproduced [2J\n"


def test_elsewhere_a_line_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    waiting = patience(out, clock, live=False)
    waiting.say("recording")
    for second in range(35):
        clock.now_s = float(second)
        waiting.show()
    assert out.getvalue().splitlines() == ["recording", "0:10 recording", "0:20 recording", "0:30 recording"]


def test_quiet_says_nothing_and_a_broken_stream_ends_nothing() -> None:
    out, clock = io.StringIO(), Clock()
    with patience(out, clock, live=True, quiet=True) as waiting:
        waiting.say("nothing")
        clock.now_s = 9.0
        waiting.show()
    assert out.getvalue() == ""
    closed = io.StringIO()
    closed.close()
    with Patience(closed, live=True, clock=clock) as waiting:
        waiting.say("nobody reads this")


def test_its_thread_ends_with_the_work() -> None:
    out = io.StringIO()
    waiting = Patience(out, live=True)
    with pytest.raises(KeyError), waiting:
        raise KeyError
    assert not waiting._thread.is_alive()
