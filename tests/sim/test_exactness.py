"""Exact mode.

Warm equals cold to the last bit, whatever the chunking, the batching, the strategy and the kind of resume.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.sim.direct import scores
from soak.sim.numerics import log_softmax, on_grid
from tests.sim.asking import direct, prompt

KINDS = [
    {"model": "attention"},
    {"model": "attention", "page_size": 16},
    {"radix_strategy": "no_buffer"},
    {"radix_strategy": "extra_buffer"},
    {"radix_strategy": "extra_buffer", "page_size": 16},
]


@pytest.mark.parametrize("kind", KINDS)
def test_chunking_and_batching_do_not_show(kind: dict) -> None:  # type: ignore[type-arg]
    ids = prompt(700)
    reference = scores(direct(chunked_prefill_size=1024, **kind).ask(ids, score_from=0))
    assert np.isfinite(reference).all()
    for chunk in (64, 256):
        sim = direct(chunked_prefill_size=chunk, **kind)
        others = [sim.send(prompt(n, seed=n), new=5, key="other") for n in (90, 333)]
        asked = sim.send(ids, score_from=0)
        others.append(sim.send(prompt(40, seed=9), new=3))
        sim.drain()
        assert np.array_equal(scores(asked), reference)
        assert all(r.finish is not None for r in others)


@pytest.mark.parametrize("kind", KINDS)
def test_warm_is_cold_after_prefill_and_after_decode(kind: dict) -> None:  # type: ignore[type-arg]
    sim = direct(**kind)
    ids = prompt(600)
    sim.ask(ids)
    grown = sim.generate(ids[:200], 250)
    for written, start in ((ids, 512), (grown, 384)):
        asked = np.concatenate([written[:start], prompt(70, seed=start)])
        cached, d = sim.warm_minus_cold(asked, start, f"cold{start}")
        assert cached > 0
        assert np.array_equal(d, np.zeros(69))


def test_decode_scores_what_prefill_scores() -> None:
    sim = direct()
    ids = prompt(150)
    served = sim.send(ids, new=60, score_from=150)
    sim.drain()
    cold = sim.ask(served.ids, score_from=149, key="cold")
    assert served.output_logprobs[:60] == scores(cold).tolist()[:60]


def test_seeded_sampling_does_not_depend_on_the_batch() -> None:
    alone, beside = direct(), direct()
    one = alone.send(prompt(80), new=30, temperature=1.0, seed=7)
    alone.drain()
    for n in range(4):
        beside.send(prompt(60 + n, seed=n), new=40)
    two = beside.send(prompt(80), new=30, temperature=1.0, seed=7)
    beside.drain()
    assert one.output == two.output
    assert len(set(one.output)) > 10


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_grid_keeps_sums_exact_in_any_order(values: list[float]) -> None:
    x = on_grid(np.asarray(values))
    assert x.sum() == x[::-1].sum() == sum(sorted(x.tolist()))
    assert (np.abs(x) <= 16).all()


def test_log_softmax_is_a_distribution() -> None:
    rows = log_softmax(np.random.default_rng(0).normal(0, 2.5, (5, 1000)))
    assert np.allclose(np.exp(rows).sum(axis=1), 1.0, atol=1e-9)
