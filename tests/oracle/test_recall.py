"""Recall is graded by fixed bars, and what only the cache forgot is told from what nobody knew."""

from __future__ import annotations

import numpy as np
import pytest

from soak.export.needles import NeedleTally, grade, needle_table
from soak.oracle.recall import RECALLED, Recall, Recalled, recalled

ANSWER = np.array([5, 6, 7], np.int32)
SURE, UNSURE = Recalled(-0.1, True), Recalled(-4.0, False)


def test_word_for_word_means_that_greedy_decoding_would_have_said_it() -> None:
    found = recalled(np.array([-0.2, -0.4, -0.6]), ANSWER, ANSWER)
    assert found.exact
    assert found.logprob == pytest.approx(-0.4)
    assert found.by_logprob
    other = recalled(np.array([-0.2, -0.4, -3.0]), np.array([5, 6, 9], np.int32), ANSWER)
    assert not other.exact
    assert not other.by_logprob
    assert other.logprob < RECALLED


@pytest.mark.parametrize("bad", [np.array([-1.0]), np.array([-1.0, np.nan, -1.0])])
def test_what_cannot_be_graded_is_an_error(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"graded|finite"):
        recalled(bad, ANSWER, ANSWER)


@pytest.mark.parametrize(
    ("warm", "cold", "forgotten"),
    [(SURE, SURE, False), (UNSURE, SURE, True), (UNSURE, UNSURE, False), (SURE, UNSURE, False),
     (Recalled(-0.5, False), Recalled(-0.4, True), True)],
)  # fmt: skip
def test_only_what_a_cold_pass_recalls_can_be_forgotten(
    warm: Recalled, cold: Recalled, forgotten: bool
) -> None:
    assert Recall(50, 900, warm, cold).forgotten is forgotten


def test_the_table_has_a_cell_for_each_depth_and_length() -> None:
    tally = NeedleTally()
    for depth, length, warm in ((0, 900, SURE), (0, 1000, UNSURE), (50, 3000, SURE)):
        tally.add(Recall(depth, length, warm, SURE))
    rows = tally.rows()
    assert [(r["depth"], r["up_to"], r["asked"], r["forgotten"]) for r in rows] == [
        (0, 1024, 2, 1),
        (50, 4096, 1, 0),
    ]
    assert rows[0]["cached"] == {"exact": 1, "likely": 1, "logprob": pytest.approx(-2.05)}
    shown = needle_table({"needles": rows})
    assert shown is not None
    title, table = shown
    assert title.endswith("forgotten by the cache: 1")
    assert table[1][1] == "2 / 1 of 2 (-0.10 / -2.05)"
    assert table[2][1] == "-"
    assert needle_table({"needles": []}) is None
    assert [grade(side) for side in (SURE, Recalled(-0.2, False), UNSURE)] == ["exact", "likely", "lost"]
