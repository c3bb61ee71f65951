"""Whether a server has started anew: by what it says, by its counters, and behind a router."""

from __future__ import annotations

import pytest

from soak.run.starts import Starts, fell
from soak.sglang.fingerprint import fingerprint_of
from soak.sglang.preflight import ServerNow
from soak.sglang.server_metrics import ServerMetrics

ONE = fingerprint_of({"version": "0.5.18", "model_path": "m"})


def now(started: str = "", seed: str = "s") -> ServerNow:
    return ServerNow(ONE, started, seed)


def counted(tokens: float) -> ServerMetrics:
    return ServerMetrics(prompt_tokens_total=tokens)


@pytest.mark.parametrize(
    ("known", "seen", "before", "after", "gone", "restarted"),
    [
        (now("a"), now("a"), counted(5), counted(9), True, False),
        (now("a"), now("b"), counted(5), counted(9), False, True),  # caught up between two looks
        (now("a"), now("b"), None, None, True, True),
        (now("a"), now("a"), None, None, True, False),
        (now(), now(), counted(5), counted(3), False, True),
        (now(), now(), counted(5), counted(7), True, False),
        (now(seed="s"), now(seed="t"), None, None, False, True),  # drawn anew at each start
        (now(), now(), None, None, True, None),
        (now(), now(), None, None, False, False),
        (
            now("a"),
            now("a"),
            counted(5),
            counted(3),
            False,
            False,
        ),  # another's counters: its start is the same
        (now("a", "s"), now("a", "t"), counted(5), counted(3), False, True),
    ],
)
def test_one_server(
    known: ServerNow,
    seen: ServerNow,
    before: ServerMetrics | None,
    after: ServerMetrics | None,
    gone: bool,
    restarted: bool | None,
) -> None:
    told, why = Starts(known).judge(seen, before, after, gone=gone)
    assert told is restarted, why
    assert why


def test_several_that_were_met_when_examined() -> None:
    starts = Starts(now("a"), [now("b"), now("c")])
    for name in "bacab":
        assert starts.judge(now(name), counted(9), counted(1), gone=False)[0] is False
        assert not starts.more
    assert starts.same(now("c"))
    assert not starts.same(now("d"))
    assert starts.judge(now("d"), None, None, gone=False)[0] is False
    assert starts.more, "new, or started anew: that cannot be told"
    assert starts.same(now("d"))
    assert starts.judge(now("a"), None, None, gone=True)[0] is False
    assert starts.judge(now("e"), None, None, gone=True)[0] is True


def test_a_start_that_comes_back_tells_a_router() -> None:
    starts = Starts(now("a"))
    assert starts.judge(now("b"), None, None, gone=False)[0] is True
    assert not starts.same(now("a")), "so far it is taken for gone"
    assert starts.judge(now("a"), None, None, gone=False)[0] is False
    assert starts.turns
    assert starts.judge(now("b"), None, None, gone=False)[0] is False


def test_a_counter_that_fell_is_named() -> None:
    assert fell(counted(5), counted(3)) == "its prompt_tokens_total fell from 5 to 3"
    assert fell(counted(3), counted(5)) == fell(None, counted(1)) == fell(counted(1), ServerMetrics()) == ""
