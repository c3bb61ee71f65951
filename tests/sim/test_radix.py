"""The tree: where a hybrid may resume, splits, namespaces, locks, eviction order, and the accounting of
slots.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.sim.numerics import I64
from soak.sim.radix import RadixTree


def ints(*values: int) -> I64:
    return np.asarray(values, np.int64)


def run(start: int, n: int) -> I64:
    return np.arange(start, start + n)


def test_attention_matches_any_prefix_and_limit() -> None:
    tree = RadixTree(1, needs_state=False)
    tree.insert("a", run(10, 8), run(100, 8), None, 0)
    match = tree.match("a", ints(10, 11, 12, 99), 4)
    assert (match.length, match.kv_len) == (3, 3)
    assert match.node is not None
    assert match.node.slots is not None
    assert match.node.slots.tolist() == [100, 101, 102]
    assert tree.match("a", run(10, 8), 5).length == 5
    assert tree.match("b", run(10, 8), 8).length == 0


def test_hybrid_resumes_only_where_a_state_is() -> None:
    tree = RadixTree(1, needs_state=True)
    tree.insert("a", run(10, 4), run(100, 4), 1, 0)
    tree.insert("a", run(10, 8), run(100, 8), 2, 4)
    assert tree.match("a", run(10, 9), 9).length == 8
    short = tree.match("a", run(10, 9), 6)
    assert (short.length, short.kv_len) == (4, 6)


def test_splitting_leaves_the_state_below() -> None:
    tree = RadixTree(1, needs_state=True)
    tree.insert("a", run(10, 8), run(100, 8), 5, 0)
    assert tree.match("a", run(10, 8), 3).length == 0  # cut in two; the upper half has no state
    assert tree.match("a", run(10, 8), 8).length == 8
    done = tree.insert("a", run(10, 3), run(200, 3), 6, 0)
    assert done.state_taken
    assert [slots.tolist() for _, slots in done.duplicates] == [[200, 201, 202]]
    assert tree.match("a", run(10, 8), 3).length == 3


def test_an_existing_state_is_kept() -> None:
    tree = RadixTree(1, needs_state=True)
    tree.insert("a", run(10, 4), run(100, 4), 1, 0)
    assert not tree.insert("a", run(10, 4), run(300, 4), 9, 0).state_taken


def test_pages_round_down() -> None:
    tree = RadixTree(4, needs_state=False)
    tree.insert("a", run(0, 8), run(40, 8), None, 0)
    assert tree.match("a", run(0, 8), 7).length == 4
    assert tree.match("a", ints(0, 1, 2, 3, 4, 9, 9, 9), 8).length == 4


def test_eviction_takes_the_oldest_unlocked_leaf() -> None:
    tree = RadixTree(1, needs_state=False)
    for i, start in enumerate((0, 100, 200)):
        tree.insert("a", run(start, 4), run(1000 + 10 * i, 4), None, 0)
    tree.match("a", run(0, 4), 4)
    held = tree.match("a", run(100, 4), 4).node
    tree.lock(held)
    freed = tree.evict(1, 0)
    assert [s.tolist() for s in freed.slots] == [[1020, 1021, 1022, 1023]]
    freed = tree.evict(100, 0)
    assert [s.tolist() for s in freed.slots] == [[1000, 1001, 1002, 1003]]
    tree.unlock(held, False)
    assert tree.evict(100, 0).tokens == 4


def test_state_eviction_keeps_the_kv_of_inner_nodes() -> None:
    tree = RadixTree(1, needs_state=True)
    tree.insert("a", run(0, 4), run(50, 4), 1, 0)
    tree.insert("a", run(0, 8), run(50, 8), 2, 4)
    freed = tree.evict(0, 1)
    assert freed.states == [1]
    assert freed.tokens == 0
    assert tree.match("a", run(0, 9), 6).length == 0
    freed = tree.evict(0, 1)
    assert freed.states == [2]
    assert freed.tokens == 8  # the leaf, and the parent that nothing can use any more


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12), st.integers(1, 3)
)
@settings(max_examples=60, deadline=None)
def test_every_slot_is_in_one_place(prompts: list[list[int]], page: int) -> None:
    tree = RadixTree(page, needs_state=False)
    free = set(range(1000))
    for ids in prompts:
        whole = len(ids) // page * page
        slots = run(min(free), 0)
        slots = np.asarray(sorted(free)[:whole], np.int64)
        free -= set(slots.tolist())
        done = tree.insert("n", np.asarray(ids[:whole], np.int64), slots, None, 0)
        for _, duplicate in done.duplicates:
            free |= set(duplicate.tolist())
        assert tree.match("n", np.asarray(ids, np.int64), len(ids)).length == whole
    held = [s for node in tree.nodes() if node.slots is not None for s in node.slots.tolist()]
    assert len(held) == len(set(held))
    assert set(held).isdisjoint(free)
    freed = tree.evict(10_000, 0)
    assert sorted(s for part in freed.slots for s in part.tolist()) == sorted(held)
    assert list(tree.nodes()) == []
