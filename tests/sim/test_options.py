"""Serving options change how the work is done, never what comes out.

Overlap, mixed chunk, drafts, tiers, backups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from soak.sim.config import SimConfig
from soak.sim.direct import Direct
from soak.sim.numerics import I64
from soak.sim.speculative import draft
from tests.sim.asking import direct, prompt
from tests.sim.test_scheduler import assert_nothing_lost

OPTIONS: list[dict[str, Any]] = [
    {"radix_strategy": "extra_buffer", "overlap": True},
    {"model": "attention", "overlap": True},
    {"radix_strategy": "extra_buffer", "mixed_chunk": True},
    {"radix_strategy": "no_buffer", "mixed_chunk": True},
    {"radix_strategy": "extra_buffer", "spec_draft_tokens": 3},
    {"radix_strategy": "no_buffer", "spec_draft_tokens": 3},
    {"model": "attention", "spec_draft_tokens": 3},
    {"radix_strategy": "extra_buffer", "retraction_backup": True},
    {"radix_strategy": "extra_buffer", "host_tokens": 16384, "host_bandwidth": 40},
    {"radix_strategy": "no_buffer", "host_tokens": 16384, "host_bandwidth": 40},
    {"model": "attention", "page_size": 8, "host_tokens": 4096, "host_bandwidth": 40},
    {"radix_strategy": "extra_buffer", "chunked_prefill_size": -1},
    {"radix_strategy": "extra_buffer", "prefill_graph": False, "decode_graph": False},
]


def churn(sim: Direct) -> list[I64]:
    """A fixed schedule of shared prefixes, generations and an abort, in too small a pool; what was said."""
    rng = np.random.default_rng(11)
    sent = []
    for i in range(16):
        shared = prompt(int(rng.integers(64, 320)), seed=i % 4)
        ids = np.concatenate([shared, prompt(int(rng.integers(1, 60)), seed=50 + i)])
        # a pair that repeats, so that drafts find something
        sent.append(sim.send(np.concatenate([ids, ids[:4], ids[:2]]), new=int(rng.integers(1, 160))))
        for _ in range(4):
            sim.scheduler.step()
        if i == 9:
            sim.scheduler.abort(sent[7].rid)
    sim.drain()
    assert all(r.finish is not None for r in sent)
    return [r.ids for i, r in enumerate(sent) if i != 7]


@pytest.mark.parametrize("options", OPTIONS)
def test_what_comes_out_is_the_same(options: dict[str, Any]) -> None:
    model = options.get("model", "hybrid")
    reference = churn(direct(model=model))
    pool = {"max_total_tokens": 1536, "max_running_requests": 6, "max_mamba_slots": 40}
    sim = direct(**{**pool, **options})
    said = churn(sim)
    for ours, expected in zip(said, reference, strict=True):
        assert np.array_equal(ours, expected)
    assert_nothing_lost(sim)
    for i in range(4):
        ids = np.concatenate([prompt(256, seed=i), prompt(25, seed=99)])
        _, d = sim.warm_minus_cold(ids, 256, f"cold{i}")
        assert np.array_equal(d, np.zeros(24))


def test_host_hits_are_counted_and_exact() -> None:
    sim = direct(radix_strategy="extra_buffer", max_total_tokens=1024, host_tokens=8192, host_bandwidth=30)
    document = prompt(512)
    sim.ask(document)
    for i in range(5):
        sim.ask(prompt(250, seed=i + 1))
    warm = sim.ask(np.concatenate([document, prompt(20, seed=9)]), score_from=512)
    assert (warm.cached, warm.cached_device, warm.cached_host) == (512, 0, 512)
    _, d = sim.warm_minus_cold(np.concatenate([document, prompt(30, seed=8)]), 512, "cold")
    assert np.array_equal(d, np.zeros(29))


def test_retraction_with_a_backup_recomputes_nothing() -> None:
    settings: dict[str, Any] = {"max_total_tokens": 520, "radix_strategy": "extra_buffer"}
    computed = []
    for backup in (False, True):
        sim = direct(retraction_backup=backup, **settings)
        sent = [sim.send(prompt(100, seed=i), new=200) for i in range(2)]
        sim.drain()
        assert sum(r.retractions for r in sent) > 0
        computed.append(sim.counters.prefill_batches)
    assert computed[1] < computed[0]


def test_drafts_are_accepted_where_text_repeats() -> None:
    sim = direct(spec_draft_tokens=4)
    sim.scheduler.runner.model.weights.unembed[:] = 0.0  # every token is id 0: all drafts are right
    request = sim.ask(prompt(40), new=60)
    assert request.output == [0] * 60
    assert sim.counters.decode_batches < 30


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([1, 2, 3, 9, 1, 2], [3, 9, 1]), ([5, 5, 5, 5], [5]), ([1, 2, 3], []), ([7], [])],
)
def test_draft(ids: list[int], expected: list[int]) -> None:
    assert draft(np.asarray(ids), 3).tolist() == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"overlap": True}, "no_buffer cannot overlap"),
        ({"page_size": 16}, "no_buffer needs page_size 1"),
        ({"mixed_chunk": True, "spec_draft_tokens": 2}, "mixed_chunk cannot be combined"),
        ({"radix_strategy": "extra_buffer", "overlap": True, "mixed_chunk": True}, "turn overlap off"),
        ({"max_mamba_slots": 20}, "at least 34"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size must be -1"),
        (
            {"model": "attention", "page_size": 16, "chunked_prefill_size": 100},
            "must be a multiple of page_size",
        ),
        ({"vocab": 2}, "vocab must be at least 16"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SimConfig(**settings)
