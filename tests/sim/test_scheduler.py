"""Queues and memory: eviction, retraction, co-batching, the chunk budget, abort at any point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from soak.sim.direct import Direct, scores
from tests.sim.asking import direct, prompt

STRATEGIES: list[dict[str, Any]] = [
    {"model": "attention"},
    {"radix_strategy": "no_buffer"},
    {"radix_strategy": "extra_buffer"},
    {"radix_strategy": "extra_buffer", "page_size": 16},
]


def assert_nothing_lost(sim: Direct) -> None:
    """With nothing running, every slot is free or in the tree, and nothing is locked."""
    tree, cache = sim.cache.tree, sim.cache
    nodes = list(tree.nodes())
    held = np.concatenate([n.slots for n in nodes if n.slots is not None] or [np.empty(0, np.int64)])
    assert len(set(held.tolist())) == len(held)
    assert cache.tokens.free_tokens + len(held) == cache.tokens.size
    assert all(n.locks == 0 and n.state_locks == 0 for n in nodes)
    states = [n.state for n in nodes if n.state is not None]
    assert len(set(states)) == len(states)
    assert len(cache.states.free) + len(states) == cache.states.free.size
    assert len(cache.table.rows) == sim.config.max_running_requests


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_churned_server_loses_nothing_and_stays_exact(kind: dict[str, Any]) -> None:
    """More work than the pool holds: evictions, retractions and aborts, then every slot is accounted for."""
    sim = direct(max_total_tokens=1280, max_running_requests=8, max_mamba_slots=48, **kind)
    rng = np.random.default_rng(4)
    sent = []
    for i in range(18):
        ids = np.concatenate(
            [prompt(int(rng.integers(20, 300)), seed=i % 5), prompt(int(rng.integers(1, 90)), i)]
        )
        sent.append(sim.send(ids, new=int(rng.integers(1, 400))))
        for _ in range(int(rng.integers(0, 12))):
            sim.scheduler.step()
        if i % 7 == 3:
            sim.scheduler.abort(sent[int(rng.integers(0, len(sent)))].rid)
    sim.drain()
    assert all(r.finish is not None for r in sent)
    assert sim.cache.evicted_tokens > 0
    assert sim.counters.retractions > 0
    assert_nothing_lost(sim)
    for i in range(3):
        _, d = sim.warm_minus_cold(
            np.concatenate([prompt(300, seed=i), prompt(30, seed=77)]), 300, f"cold{i}"
        )
        assert np.array_equal(d, np.zeros(29))


def test_a_retracted_request_says_the_same() -> None:
    reference = direct().generate(prompt(100), 300)
    sim = direct(max_total_tokens=768)
    first = sim.send(prompt(100), new=300)
    others = [sim.send(prompt(100, seed=i), new=300) for i in (1, 2)]
    sim.drain()
    assert sum(r.retractions for r in [first, *others]) > 0
    assert np.array_equal(first.ids, reference)
    assert all(len(r.output) == 300 for r in others)


def test_a_request_that_can_never_fit_is_refused_not_stuck() -> None:
    sim = direct(max_total_tokens=256)
    alone = sim.send(prompt(200), new=300)
    sim.drain()
    assert alone.finish is not None
    assert alone.finish["type"] == "abort"
    assert_nothing_lost(sim)


def test_chunks_share_a_budget_and_batches_are_co_prefilled() -> None:
    sim = direct(chunked_prefill_size=256)
    asked = [sim.send(prompt(n, seed=n), new=1) for n in (100, 101, 102)]
    sim.scheduler.step()
    assert [r.finish is not None for r in asked] == [True, True, False]
    assert sim.scheduler.chunked is asked[2]
    assert asked[2].kv_len == 256 - 201
    sim.drain()
    assert sim.counters.prefill_batches == 2


def test_abort_while_waiting_while_chunked_and_while_running() -> None:
    sim = direct(chunked_prefill_size=64, max_running_requests=2)
    running = sim.send(prompt(30), new=500)
    sim.scheduler.step()
    chunked = sim.send(prompt(500, seed=1), new=5)
    sim.scheduler.step()
    assert sim.scheduler.chunked is chunked
    waiting = sim.send(prompt(30, seed=2), new=5)
    sim.scheduler.abort(waiting.rid)
    sim.scheduler.abort(chunked.rid)
    sim.scheduler.abort(running.rid)
    sim.drain()
    reasons = [r.finish for r in (running, chunked, waiting)]
    assert [r and r["message"] for r in reasons] == ["Aborted", "Aborted", "Abort in waiting queue"]
    assert_nothing_lost(sim)


def test_flush_needs_an_idle_server_and_forgets_everything() -> None:
    sim = direct()
    ids = prompt(300)
    sim.send(ids, new=50)
    sim.scheduler.step()
    assert not sim.scheduler.flush()
    sim.drain()
    assert sim.ask(ids).cached == 256
    assert sim.scheduler.flush()
    assert sim.ask(ids).cached == 0
    assert_nothing_lost(sim)


def test_where_a_hybrid_can_resume() -> None:
    """no_buffer: chunk and request ends. extra_buffer: resume + floor(n / grid) * grid, track multiples."""
    ids = prompt(700)
    for strategy, after_prefill in (("no_buffer", [256, 512, 700]), ("extra_buffer", [256, 512, 640])):
        sim = direct(radix_strategy=strategy)
        sim.ask(ids)
        longer = np.concatenate([ids, prompt(20, seed=5)])
        match = sim.cache.tree.match
        found = {match((None, None, None), longer, n, touch=False).length for n in range(1, 715, 3)}
        assert sorted(found - {0}) == after_prefill
        grown = sim.generate(prompt(100, seed=3), 300)
        hit = sim.cache.tree.match((None, None, None), grown, 400, touch=False).length
        assert hit == (399 if strategy == "no_buffer" else 384)


def test_a_branch_point_gets_a_checkpoint_of_its_own() -> None:
    sim = direct(radix_strategy="extra_buffer")
    ids = prompt(256)
    sim.ask(ids)
    branch = np.concatenate([ids[:200], prompt(300, seed=1)])
    assert sim.ask(branch).cached == 0
    assert sim.ask(np.concatenate([ids[:200], prompt(50, seed=2)])).cached == 192


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_disabled_radix_cache_caches_nothing(kind: dict[str, Any]) -> None:
    sim = direct(disable_radix_cache=True, **kind)
    ids = prompt(300)
    first = scores(sim.ask(ids, score_from=0))
    again = sim.ask(ids, new=5, score_from=299)
    assert again.cached == 0
    assert np.array_equal(scores(again), first[299:])
    assert_nothing_lost(sim)


def test_what_is_loaded_ahead_for_those_who_wait_does_not_stop_the_one_that_runs() -> None:
    sim = direct(max_total_tokens=1800, host_tokens=65536, host_bandwidth=16)
    documents = [prompt(600, seed) for seed in (1, 2)]
    for ids in (*documents, *(prompt(600, seed) for seed in range(3, 7))):
        sim.ask(ids)
    # two prefixes of 600 are loaded while 690 tokens are computed in chunks: together more than the pool
    first = sim.send(prompt(690, seed=8), new=1)
    later = [sim.send(np.concatenate([ids, prompt(5, seed=9)]), new=1) for ids in documents]
    assert all(request.prefetched is None for request in later)
    sim.scheduler.step()
    assert all(request.prefetched is not None for request in later)
    for _ in range(5000):
        if not sim.scheduler.step():
            break
    assert not sim.scheduler.waiting
    assert [request.finish["type"] for request in (first, *later) if request.finish] == ["length"] * 3
    assert [request.cached_host for request in later] == [600, 600]
