"""What must hold afterwards: judged from what asking the witnesses came to."""

from __future__ import annotations

import pytest

from soak.chaos.afterwards import _cold
from soak.chaos.witnesses import Seen


@pytest.mark.parametrize(
    ("cached", "held"), [([0, 0], True), ([0, 1], True), ([8, 0], True), ([0, 64], False), ([9, 0], False)]
)
def test_first_tokens_that_others_begin_with_too_make_no_prefix_warm(cached: list[int], held: bool) -> None:
    assert _cold([Seen(str(n), cached=tokens) for n, tokens in enumerate(cached)]).held is held


def test_what_could_not_be_asked_holds_nothing() -> None:
    assert _cold([Seen("a", failed="gone"), Seen("b", failed="gone")]).held is None
    assert _cold([Seen("a", failed="gone"), Seen("b", cached=64)]).held is False
