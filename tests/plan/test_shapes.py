"""What each shape promises to reach, beyond fitting the context (which tests/plan/test_plan.py holds)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from soak.plan.cost import ProbeTerms, cost
from soak.plan.geometry import Geometry
from soak.plan.item import Abort, AbortBy, Item, Pause
from soak.plan.plan import Plan
from soak.plan.shapes import DISRUPTIVE, SHAPES, leaves_a_victim, servable
from soak.plan.shapes.canary import ANSWER, CANARIES, key_of
from soak.plan.spec import ResolvedSpec
from soak.plan.strict import code_of, schema_of, wrong

HYBRID = Geometry(
    vocab_size=4096,
    context_len=8192,
    chunk=512,
    page=16,
    state_grid=64,
    track_interval=128,
    max_total_tokens=40_000,
    hybrid=True,
)
SPEC = ResolvedSpec(geometry=HYBRID, max_context=2048)


def indices(shape: str, count: int, spec: ResolvedSpec = SPEC) -> list[tuple[Item, ...]]:
    plan = Plan(11, replace(spec, weights=((shape, 1),)))
    return list(itertools.islice(plan.walk(), count))


def test_co_batched_prompts_fit_one_prefill_and_a_narrow_one_follows() -> None:
    widths = set()
    off_grid = on_grid = 0
    for wide, narrow in indices("co-batched", 200):
        lengths = [p.length for p in wide.prompts]
        assert wide.batched
        assert sum(lengths) <= HYBRID.chunk
        assert min(lengths) >= 64
        widths.add(len(lengths))
        off_grid += sum(n % 64 != 0 for n in lengths[1:])
        on_grid += sum(n % 64 == 0 for n in lengths)
        assert narrow.parent is None
        assert len(narrow.prompts) == 1
        assert narrow.prompts[0].length >= 64  # or no captured graph is replayed
        assert not {s for p in wide.prompts for s in p.segments} & set(narrow.prompts[0].segments)
    assert widths == {2, 3, 4, 5, 6}
    assert off_grid > 100
    assert on_grid > 100


def test_branches_part_on_and_beside_every_boundary() -> None:
    cuts, turns, lengths, keys = set(), set(), [], []
    for first, second in indices("branching", 1500):
        trunk, branch = first.prompts[0].segments
        cuts.add(trunk.length)
        keys.append(trunk.key)
        turns.add(second.prompts[0].length)
        lengths.append((first.prompts[0].length, branch.length))
        assert second.parent == 0
    for unit in (16, 64, 128, 512):
        for offset in (0, 1, -1, 3, -3, 32, -32):
            assert any(cut % unit == offset % unit for cut in cuts), (unit, offset)
    assert turns == {1, 2, 3}
    assert {1, 2, 3} <= {branch for _, branch in lengths}
    assert sum(total % 64 == 1 for total, _ in lengths) > 300
    assert keys.count(keys[700]) == 24  # a trunk is everybody's of its window


def test_generations_pass_the_track_interval_and_a_third_end_beside_it() -> None:
    ends = [0, 0, 0]
    for first, _ in indices("decode-seeded", 300):
        total = first.prompts[0].length + first.max_new_tokens
        assert total < SPEC.max_context
        for place, beside in enumerate((-1, 0, 1)):
            ends[place] += total % 128 == beside % 128
    assert min(ends) > 8
    assert 30 < sum(ends) < 110


def test_identical_prompts_are_identical_and_half_come_back() -> None:
    seen = []
    for (item,) in indices("identical", 120):
        assert len(set(item.prompts)) == 1
        assert len(item.prompts) >= 2
        seen.append(item.prompts[0])
    assert len(set(seen)) < 90


def test_tenants_take_turns_on_one_document() -> None:
    asked: dict[int, set[int | None]] = {}
    for (item,) in indices("tenant-ping-pong", 240):
        asked.setdefault(item.prompts[0].segments[0].key, set()).add(item.tenant)
    assert set().union(*asked.values()) == {0, 1, 2}
    assert sum(len(tenants) == 3 for tenants in asked.values()) >= 8


def test_aborts_come_in_every_place_and_way_and_the_same_is_asked_again() -> None:
    aborts: list[Abort] = []
    for first, again in indices("abort-storm", 300):
        assert first.abort is not None
        aborts.append(first.abort)
        assert again.abort is None
        assert again.prompts[0].segments[0] == first.prompts[0].segments[0]
        if first.abort.after_tokens is not None:
            assert 1 <= first.abort.after_tokens < first.max_new_tokens
            assert first.stream  # or nobody could count them
    assert {a.prefill_per_mille for a in aborts} == {100, 500, 900, None}
    assert {a.by for a in aborts} == set(AbortBy)


@pytest.mark.parametrize("pool", [20_000, 40_000, None])
def test_pressure_passes_the_pool_where_it_is_known(pool: int | None) -> None:
    spec = replace(SPEC, geometry=replace(HYBRID, max_total_tokens=pool), pressure=64)
    for (item,) in indices("pressure", 50, spec):
        total = sum(p.length + item.max_new_tokens for p in item.prompts)
        if pool is not None:
            assert total > pool
            assert total < 1.2 * pool + 2 * spec.max_context
        assert 2 <= len(item.prompts) <= 64


def test_a_round_trip_fills_the_pool_between_two_questions() -> None:
    for first, fillers, again in indices("tier-round-trip", 50):
        assert again.prompts[0].segments[0] == first.prompts[0].segments[0]
        assert sum(p.length for p in fillers.prompts) > HYBRID.max_total_tokens  # type: ignore[operator]


def test_the_shapes_that_fill_the_pool_never_pass_their_cap() -> None:
    spec = replace(SPEC, geometry=replace(HYBRID, max_total_tokens=10**9), pressure=5)
    for shape in DISRUPTIVE:
        for items in indices(shape, 20, spec):
            assert max(len(item.prompts) for item in items) <= 5


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_cost(shape: str) -> None:
    plan = Plan(3, replace(SPEC, weights=((shape, 1),)))
    found = cost(plan, ProbeTerms(4.0, 64, 0.5, 0.5, 60))
    assert found.prefill_tokens > 0
    assert found.longest < SPEC.max_context + 1


def test_canaries_are_asked_alone_and_with_others_and_are_few() -> None:
    keys, widths = set(), set()
    for (item,) in indices("canary", 400):
        asked = [key_of(item, part) for part in range(len(item.prompts))]
        assert len(set(asked)) == len(asked)
        keys |= set(asked)
        widths.add((len(asked), item.batched))
        assert item.max_new_tokens == ANSWER
        assert item.temperature_milli == 0
    assert keys == set(range(CANARIES))
    assert {(1, False), (2, False), (2, True), (6, True)} <= widths


def test_a_canary_is_the_same_prompt_whenever_it_is_asked() -> None:
    by_key: dict[int, set[object]] = {}
    for (item,) in indices("canary", 100):
        for part, prompt in enumerate(item.prompts):
            by_key.setdefault(key_of(item, part), set()).add(prompt)
    assert all(len(prompts) == 1 for prompts in by_key.values())


def test_a_strict_answer_is_judged_by_its_own_schema() -> None:
    own, other = code_of(1, 2, 3, 0), code_of(1, 2, 3, 1)
    assert own != other
    schema = json.loads(schema_of(own))
    assert schema["properties"]["id"]["const"] == own
    assert wrong(f'{{"id": "{own}", "kind": "beta"}}', own, True) == ""
    assert wrong(f'{{"id": "{own}", "ki', own, False) == ""
    assert "another request" in wrong(f'{{"id": "{other}", "ki', own, False)
    assert "does not parse" in wrong(f'{{"id": "{own}", "ki', own, True)
    assert "own schema" in wrong(f'{{"id": "{own}"}}', own, True)
    assert "own schema" in wrong("[]", own, True)


def test_adapters_come_by_turns_with_nobody_and_with_nobody_under_their_name() -> None:
    spec = replace(SPEC, geometry=replace(HYBRID, adapters=("a", "b")))
    roles = {(item.adapter, item.keyed) for (item,) in indices("adapters", 200, spec)}
    assert roles == {(0, None), (1, None), (None, 0), (None, 1), (None, None)}


def test_a_pause_comes_before_prompts_queue_or_while_they_generate() -> None:
    queued = returned = 0
    for (item,) in indices("pause-queue", 100):
        assert item.hold is not None
        assert item.hold.for_us <= 120_000
        if item.hold.mode is Pause.IN_PLACE:
            queued += 1
            assert item.hold.after_tokens is None
            assert all(p.length <= HYBRID.chunk for p in item.prompts)
        else:
            returned += 1
            assert item.hold.after_tokens is not None
            assert 2 <= item.hold.after_tokens < item.max_new_tokens
    assert min(queued, returned) > 30


def test_what_is_taken_back_as_it_loads_stands_behind_what_fills_the_pool() -> None:
    for document, first, last in indices("abort-load", 50):
        assert last.abort is not None
        assert last.abort.part == len(last.prompts) - 1
        assert last.prompts[-1].segments[0] == document.prompts[0].segments[0]
        pool = HYBRID.max_total_tokens
        assert pool is not None
        assert min(sum(p.length for p in item.prompts) for item in (first, last)) > pool


@pytest.mark.parametrize("shape", SHAPES)
def test_what_only_fills_the_pool_is_no_victim(shape: str) -> None:
    spec = replace(SPEC, geometry=replace(HYBRID, adapters=("a",), grammar=True))
    left = {tuple(leaves_a_victim(item) for item in steps) for steps in indices(shape, 20, spec)}
    pushing = {"abort-load": {(False, False, True)}, "tier-round-trip": {(True, False, True)}}
    assert left == pushing.get(shape, left)
    assert all(steps[-1] for steps in left)
    assert shape in pushing or all(map(all, left))


def test_a_server_is_asked_only_what_it_can_be_asked() -> None:
    bare = Geometry(host_tier=False)
    assert {name for name in SHAPES if not servable(name, bare)} == {"strict-json", "adapters", "abort-load"}
    assert all(servable(name, Geometry(adapters=("a",), grammar=True)) for name in SHAPES)
