"""A recipe gives exactly the ids that were sent, whatever the sources, and is short where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.incident.journal_recipe import Source, agreement, describe, rebuild

IDS = st.lists(st.integers(0, 3), max_size=60).map(lambda ids: np.array(ids, np.int32))
NAMES: list[Source] = [("victim", 0), ("tail", 0), ("sent", 0), ("got", 1)]


@given(IDS, st.lists(IDS, min_size=4, max_size=4))
def test_a_recipe_gives_the_ids_again(ids: np.ndarray, held: list[np.ndarray]) -> None:
    sources = dict(zip(NAMES, held, strict=True))
    recipe = describe(ids, sources)
    assert rebuild(recipe.pieces, recipe.literal, sources.__getitem__).tolist() == ids.tolist()


def test_what_probes_send_needs_no_ids_written_out() -> None:
    rng = np.random.default_rng(1)
    victim, tail, got = (rng.integers(10, 1000, n).astype(np.int32) for n in (500, 64, 24))
    sources: dict[Source, np.ndarray] = {("victim", 0): victim, ("tail", 0): tail, ("got", 0): got}
    question = np.concatenate([victim, got])
    sent: dict[Source, np.ndarray] = sources | {("sent", 1): question}
    for ids in (
        np.concatenate([victim, tail]),
        np.concatenate([victim, tail])[:530],  # cut to the most that is scored
        np.concatenate([victim[:256], tail]),  # a control by itself
        question,
        question[-(64 + 24) :],  # the far context cut out
    ):
        recipe = describe(ids, sent)
        assert not recipe.literal.size
        assert len(recipe.pieces) <= 2


def test_ids_of_nobody_are_written_out() -> None:
    ids = np.arange(100, dtype=np.int32)
    recipe = describe(ids, {})
    assert recipe.pieces == (["ids", 100],)
    assert recipe.literal.tolist() == ids.tolist()


def test_a_source_that_is_too_short_is_no_ids_at_all() -> None:
    with pytest.raises(ValueError, match="only 3 ids"):
        rebuild([["victim", 0, 0, 9]], np.empty(0, np.int32), lambda _: np.arange(3, dtype=np.int32))


@given(IDS, IDS)
def test_agreement_counts_leading_ids(one: np.ndarray, other: np.ndarray) -> None:
    n = agreement(one, other)
    assert one[:n].tolist() == other[:n].tolist()
    assert n == min(len(one), len(other)) or one[n] != other[n]
