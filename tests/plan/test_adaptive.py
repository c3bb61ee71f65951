"""Decisions: pure, within bounds, back to where evidence grew; and plans that follow them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.plan.adaptive import (
    Decision,
    Hits,
    Seen,
    decide,
    decision_of,
    least_context,
    refuse_beyond,
    together_levels,
)
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.plan.restored import spec_of
from soak.plan.shapes import SHAPES
from soak.plan.spec import Adaptive, ResolvedSpec

GOLDEN = Path(__file__).parent / "golden" / "adaptive.jsonl"
SPEC = ResolvedSpec(
    geometry=Geometry(chunk=256, track_interval=128, state_grid=64, hybrid=True),
    arrivals="burst",
    burst=8,
    max_context=1600,
    weights=(("chunked-burst", 2), ("decode-seeded", 3)),
    adaptive=Adaptive(every=8, together=12, prompts=40),
)
NOTHING = Seen({"chunked-burst": 0, "decode-seeded": 0})


def chain(seed: int, spec: ResolvedSpec, seens: list[Seen]) -> list[Decision]:
    taken: list[Decision] = []
    assert spec.adaptive is not None
    for number, seen in enumerate(seens):
        taken.append(decide(seed, spec, taken, (number + 1) * spec.adaptive.every, seen))
    return taken


@st.composite
def specs(draw: st.DrawFn) -> ResolvedSpec:
    names = draw(st.lists(st.sampled_from(list(SHAPES)), min_size=1, unique=True))
    least = draw(st.integers(8, 200))
    return ResolvedSpec(
        arrivals=draw(st.sampled_from(["poisson", "burst", "ramp", "constant"])),
        weights=tuple((name, draw(st.integers(0, 3)) if name not in names else 2) for name in SHAPES),
        min_prompt=least,
        max_context=draw(st.integers(max(96, 3 * least), 4096)),
        burst=draw(st.integers(2, 64)),
        adaptive=Adaptive(
            every=draw(st.integers(1, 20)),
            together=draw(st.integers(1, 64)),
            prompts=draw(st.integers(1, 256)),
        ),
    )


@st.composite
def sights(draw: st.DrawFn, number: int) -> Seen:
    shape = st.sampled_from(list(SHAPES))
    looked = draw(st.dictionaries(shape, st.integers(0, 1000)))
    hits = st.builds(Hits, st.integers(-1, number + 2), shape, st.integers(0, 9))
    return Seen(looked, tuple(draw(st.lists(hits, max_size=3))))


@given(specs(), st.integers(0, 2**63), st.data())
@settings(max_examples=60, deadline=None)
def test_no_decision_goes_beyond_the_spec_and_the_same_is_decided_again(
    spec: ResolvedSpec, seed: int, data: st.DataObject
) -> None:
    seens = [data.draw(sights(number)) for number in range(data.draw(st.integers(1, 6)))]
    taken = chain(seed, spec, seens)
    assert taken == chain(seed, spec, seens)
    for decision in taken:
        refuse_beyond(decision, spec)  # its own bounds, and once more by hand:
        assert spec.adaptive is not None
        assert 1 <= decision.together <= spec.adaptive.together
        assert decision.together == 1 or decision.together * decision.burst <= spec.adaptive.prompts
        assert decision.burst <= max(2, spec.burst)
        assert decision.context <= spec.max_context
        assert decision_of(json.loads(json.dumps(decision.as_row())), spec) == decision
    assert [d.first for d in taken] == sorted({d.first for d in taken})
    plan = Plan(seed, spec, decisions=taken)
    times = [plan.at_us(index) for index in range(taken[-1].first + 20)]
    assert times == sorted(times)
    assert spec_of(json.loads(json.dumps(spec.as_dict()))).adaptive == spec.adaptive


@given(st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_within_two_dozen_decisions_everything_is_tried(seed: int) -> None:
    taken = chain(seed, SPEC, [NOTHING] * 24)
    assert {d.together for d in taken} == set(together_levels(12)) == {1, 2, 3, 4, 5, 8, 9, 12}
    assert {d.context for d in taken} == {400, 800, 1600}
    assert {d.burst for d in taken} >= {2, 8 if any(d.together <= 5 for d in taken) else 2}


def test_more_weight_goes_where_fewer_looked_and_most_where_evidence_grew() -> None:
    first = decide(1, SPEC, [], 8, Seen({"chunked-burst": 40, "decode-seeded": 0}))
    assert dict(first.weights) == {"chunked-burst": 2, "decode-seeded": 12}
    assert "nobody looked at decode-seeded" in first.why
    few = decide(1, SPEC, [], 8, Seen({"chunked-burst": 40, "decode-seeded": 3}))
    assert dict(few.weights) == {"chunked-burst": 2, "decode-seeded": 6}
    hit = decide(1, SPEC, [first], 16, Seen({"chunked-burst": 40}, (Hits(1, "chunked-burst", 2),)))
    assert dict(hit.weights) == {"chunked-burst": 16, "decode-seeded": 3}


def test_the_load_that_evidence_grew_from_comes_back_but_not_for_ever() -> None:
    hits = Seen({}, (Hits(2, "decode-seeded", 3), Hits(1, "decode-seeded", 1)))
    taken = chain(5, SPEC, [NOTHING, NOTHING, NOTHING])
    for _ in range(4):
        taken.append(decide(5, SPEC, taken, taken[-1].first + 8, hits))
        assert taken[-1].like == 2
        assert "4 of decode-seeded" in taken[-1].why
        same = (taken[1].together, taken[1].burst, taken[1].context)
        assert (taken[-1].together, taken[-1].burst, taken[-1].context) == same
    taken.append(decide(5, SPEC, taken, taken[-1].first + 8, hits))
    assert taken[-1].like is None
    # what a repeated load brought to light counts for the decision that had it first
    again = Seen({}, (Hits(5, "decode-seeded", 1),))
    assert decide(5, SPEC, taken, taken[-1].first + 8, again).like == 2
    before_any = decide(5, SPEC, taken, taken[-1].first + 8, Seen({}, (Hits(0, "chunked-burst", 1),)))
    assert (before_any.like, before_any.together, before_any.context) == (0, 8, 1600)


def test_a_plan_is_the_same_up_to_a_decision_and_follows_it_from_there() -> None:
    taken = chain(3, SPEC, [NOTHING] * 3)
    plain, led = Plan(3, SPEC), Plan(3, SPEC)
    for decision in taken:
        led.follow(decision)
    assert [led.items(i) for i in range(8)] == [plain.items(i) for i in range(8)]
    assert [led.items(i) for i in range(8, 40)] != [plain.items(i) for i in range(8, 40)]
    assert [led.decision_at(i) for i in (0, 7, 8, 15, 16, 24, 99)] == [0, 0, 1, 1, 2, 3, 3]
    assert led.decisions == tuple(taken)
    starts = [led.at_us(index) for index in range(24, 24 + taken[2].together)]
    assert len(set(starts)) == 1  # so many at once
    for index in range(24, 60):
        assert all(p.length <= taken[2].context for item in led.items(index) for p in item.prompts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"first": 8}, "the one before it"),
        ({"together": 13}, "together 13"),
        ({"together": 8, "burst": 8}, "40 may be in flight"),
        ({"burst": 9}, "burst 9"),
        ({"context": 5000}, "context 5000"),
        ({"context": 20}, "context 20"),
        ({"weights": (("chunked-burst", 1),)}, "weights of"),
        ({"weights": (("chunked-burst", 1), ("decode-seeded", 0))}, "weights of"),
    ],
)
def test_decisions_beyond_the_spec_are_refused(change: dict[str, object], words: str) -> None:
    (taken,) = chain(3, SPEC, [NOTHING])
    plan = Plan(3, SPEC, decisions=[taken])
    with pytest.raises(ValueError, match=words):
        plan.follow(replace(replace(taken, first=16, together=1), **change))  # type: ignore[arg-type]


def test_what_is_no_decision_is_refused_in_words() -> None:
    (taken,) = chain(3, SPEC, [NOTHING])
    row = taken.as_row()
    for broken in ({}, row | {"first": "8"}, row | {"weights": 3}, row | {"like": 1.5}):
        with pytest.raises(ValueError, match="not the values of a decision"):
            decision_of(broken, SPEC)
    with pytest.raises(ValueError, match="no shape pressure"):
        decision_of(row | {"weights": {**row["weights"], "pressure": 1}}, SPEC)
    plain = replace(SPEC, adaptive=None)
    with pytest.raises(ValueError, match="not adaptive"):
        decide(1, plain, [], 8, NOTHING)
    with pytest.raises(ValueError, match="not adaptive"):
        Plan(1, plain, decisions=[taken])
    with pytest.raises(ValueError, match="the decision before"):
        decide(1, SPEC, [taken], 8, NOTHING)
    assert least_context(SPEC) == 192


def golden_rows() -> str:
    """Decisions and the plan that they give, as a run would journal and send them."""
    seens = [
        NOTHING,
        Seen({"chunked-burst": 9, "decode-seeded": 0}),
        Seen({"chunked-burst": 9, "decode-seeded": 4}, (Hits(1, "decode-seeded", 2),)),
        Seen({"chunked-burst": 30, "decode-seeded": 4}),
    ]
    taken = chain(20261130, SPEC, seens)
    plan = Plan(20261130, SPEC, nonce=5, decisions=taken)
    rows = [d.as_row() for d in taken]
    rows += [plan.row(item) for items in itertools.islice(plan.walk(), 44) for item in items]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def test_golden() -> None:
    # A difference here means that recorded decisions no longer replay: raise PLAN_VERSION.
    assert golden_rows() == GOLDEN.read_text()
