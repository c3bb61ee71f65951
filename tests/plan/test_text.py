"""Text as ids: made once, the same for ever, cut where the plan says, and refused where it is no text."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.plan.geometry import Geometry
from soak.plan.item import Segment
from soak.plan.lexicon import FORMAT, Lexicon, LexiconError, lexicon_of
from soak.plan.plan import Plan
from soak.plan.restored import spec_of
from soak.plan.shapes.needles import DEPTHS
from soak.plan.spec import ResolvedSpec
from soak.plan.text_maker import FACTS, SENTENCES, made_text

LEXICON = Lexicon(
    pieces=((5, 6, 7), (8, 9), (10,), (11, 12, 13, 14)),
    facts=(((20, 21, 22), (23, 24), (22,)), ((30, 31), (32,), (33, 34))),
    model="m",
)
TEXT = Geometry(pieces=LEXICON.pieces, facts=LEXICON.facts)


def test_the_built_in_text_is_frozen() -> None:
    text = made_text()
    assert (len(text.sentences), len(text.facts)) == (SENTENCES, FACTS)
    whole = "".join([*text.sentences, *itertools.chain.from_iterable(text.facts)])
    assert hashlib.blake2b(whole.encode(), digest_size=8).hexdigest() == "93232062ef968120"
    assert len({fact[1] for fact in text.facts}) == FACTS
    assert all(fact[0].endswith(f"{fact[2]}.") for fact in text.facts)
    assert made_text(2) != text


def test_a_lexicon_comes_back_from_its_values() -> None:
    assert lexicon_of(LEXICON.as_dict()) == LEXICON


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "other"}, "not a text"),
        ({"pieces": []}, "0 tokens"),
        ({"pieces": [[1], []]}, "none empty"),
        ({"pieces": [[True]]}, "none empty"),
        ({"pieces": 7}, "pieces: a list"),
        ({"pieces": [[1] * 200_001]}, "1 to 200,000"),
        ({"facts": [[[1], [2]]]}, "each is a sentence"),
    ],
)
def test_what_is_no_lexicon_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(LexiconError, match=why):
        lexicon_of({**LEXICON.as_dict(), **change})
    with pytest.raises(LexiconError, match=FORMAT):
        lexicon_of([])


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 9))
def test_a_document_of_text_is_whole_pieces_cut_where_it_is_asked(start: int, length: int, key: int) -> None:
    cut = Segment("own-0", key, start, length).ids(1, 2, TEXT)
    whole = Segment("own-0", key, 0, start + length).ids(1, 2, TEXT)
    assert np.array_equal(cut, whole[start:])
    ids, pieces = whole.tolist(), {piece[0]: piece for piece in LEXICON.pieces}
    while ids:
        piece = pieces[ids[0]]
        assert tuple(ids[: len(piece)]) == piece[: len(ids)]
        ids = ids[len(piece) :]


def test_documents_differ_by_key_and_nonce() -> None:
    texts = {
        tuple(Segment("own-0", key, 0, 60).ids(1, nonce, TEXT).tolist())
        for key in range(5)
        for nonce in (1, 2)
    }
    assert len(texts) == 10


def needles(geometry: Geometry, count: int = 60) -> list[Any]:
    spec = ResolvedSpec(geometry=geometry, weights=(("needles", 1),), max_context=600)
    plan = Plan(3, spec)
    return [(plan, items[0]) for items in itertools.islice(plan.walk(), count)]


@pytest.mark.parametrize("geometry", [TEXT, Geometry()], ids=["text", "ids"])
def test_a_needle_lies_at_its_depth_and_is_asked_for_by_what_it_says(geometry: Geometry) -> None:
    depths, lengths = set(), set()
    for plan, item in needles(geometry):
        needle = item.needle
        assert needle is not None
        ids = plan.ids(item.prompts[0])
        question, answer = (s.ids(3, 0, geometry) for s in (needle.question, needle.answer))
        segments = item.prompts[0].segments
        place = next(n for n, s in enumerate(segments) if s.purpose in ("fact", "needle"))
        fact, before = segments[place], sum(s.length for s in segments[:place])
        assert before == (len(ids) - fact.length) * needle.depth // 100
        if not geometry.facts:
            assert np.array_equal(np.concatenate([question, answer]), fact.ids(3, 0, geometry))
        assert len(ids) + len(question) + len(answer) < 600
        depths.add(needle.depth)
        lengths.add(len(ids))
    assert depths == set(DEPTHS)
    assert max(lengths) > 3 * min(lengths)


def test_a_spec_with_text_comes_back_from_a_journal() -> None:
    spec = ResolvedSpec(geometry=replace(TEXT, adapters=("a",)), weights=(("needles", 1),))
    again = spec_of(spec.as_dict())
    assert again == spec
    assert Plan(1, again).row(Plan(1, again).items(4)[0]) == Plan(1, spec).row(Plan(1, spec).items(4)[0])
