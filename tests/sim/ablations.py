"""Every fault with a conjunction: a play that makes it show, and how each condition is taken away.

A play returns the largest difference, in nats, between what was served from the cache (or after it) and a
cold pass of the same tokens. ``without`` maps a condition to the settings that remove it; a condition that is
a matter of what is sent is removed inside the play, which is told what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.runners.faults import settings_for
from soak.sim.config import SimConfig
from soak.sim.direct import Direct, scores
from soak.sim.numerics import F64, I64
from soak.sim.request import Request
from tests.sim.asking import prompt

Play = Callable[[Direct, str], float]


@dataclass(frozen=True)
class Ablation:
    """bound: nats that the fault must exceed with all conditions; settings: beyond the fault's own."""

    play: Play
    bound: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def run(self, fault: str, planted: bool, missing: str = "") -> float:
        """The play's figure, with or without the fault, with all conditions or with one missing."""
        given = {**settings_for([fault]), **self.settings, **self.without.get(missing, {})}
        sim = Direct(SimConfig(numerics="exact", faults=(fault,) if planted else (), **given))
        return self.play(sim, missing)


def worst(*differences: F64) -> float:
    return max(float(np.abs(d).max()) for d in differences)


def probe(sim: Direct, prefix: I64, missing: str, label: str, tail: int = 24) -> float:
    """Warm against cold on ``prefix`` and a fresh tail; without the hit if that is what is missing."""
    if missing == "prefix_hit":
        assert sim.scheduler.flush()
    ids = np.concatenate([prefix, prompt(tail, seed=len(label) + 900)])
    cached, d = sim.warm_minus_cold(ids, len(prefix), label)
    if missing == "prefix_hit":
        assert cached == 0
    return worst(d)


def served_minus_cold(sim: Direct, request: Request, label: str) -> float:
    """What the server said while it generated, against a cold prefill of the same tokens."""
    start = len(request.prompt) - 1
    cold = sim.ask(request.ids, score_from=start, key=label)
    served = np.asarray(request.output_logprobs)
    return worst(served - scores(cold)[: len(served)])


def stale_track_rows(sim: Direct, missing: str) -> float:
    """Two 128-token prompts in one replay arm row 1.

    A narrower replay then fires into the second's checkpoint.
    """
    documents = [prompt(128, seed=1), prompt(128, seed=2)]
    for document in documents:
        sim.send(document)
        if missing == "co_batched_prefill":
            sim.drain()
    sim.drain()
    sim.ask(prompt(100, seed=3))
    return max(probe(sim, d, missing, f"cold{i}") for i, d in enumerate(documents))


def stale_track_tail(sim: Direct, missing: str) -> float:
    """One request decodes past the track interval, then prompt and output are scored again from there."""
    new = 20 if missing == "decode_past_interval" else 200
    requests = [
        sim.send(prompt(100, seed=i), new=new) for i in range(8 if missing == "batch_below_largest" else 1)
    ]
    sim.drain()
    return max(
        probe(sim, r.ids[: min(256, len(r.ids) - 1)], missing, f"cold{i}") for i, r in enumerate(requests)
    )


def multi_prefill_offset(sim: Direct, missing: str) -> float:
    """Two prompts in one batch; the second begins where the first, of an uneven length, ends."""
    first = prompt(64 if missing == "off_grid_start" else 90, seed=1)
    second = prompt(130, seed=2)
    sim.send(first)
    if missing == "co_batched_prefill":
        sim.drain()
    sim.send(second)
    sim.drain()
    return probe(sim, second[:128], missing, "cold")


def track_overlap(sim: Direct, missing: str) -> float:
    """A request that ends with 127 tokens committed; its successor goes on from there."""
    new = 40 if missing == "ends_before_boundary" else 28
    request = sim.ask(prompt(100), new=new)
    return probe(sim, request.ids[:127], missing, "cold")


def mixed_chunk_drop(sim: Direct, missing: str) -> float:
    """A prompt lands while another request decodes."""
    decoding = sim.send(prompt(40, seed=1), new=60)
    if missing == "others_decoding":
        sim.drain()
    for _ in range(3):
        sim.scheduler.step()
    document = prompt(200, seed=2)
    sim.send(document)
    sim.drain()
    assert decoding.finish is not None
    return probe(sim, document[:192], missing, "cold")


def spec_untracked(sim: Direct, missing: str) -> float:
    """One prompt through the prefill graph, then a hit on it."""
    document = prompt(128)
    sim.ask(document, new=5)
    return probe(sim, document, missing, "cold")


def branch_state_mismatch(sim: Direct, missing: str) -> float:
    """A prompt parts from an earlier one at token 96 and goes on to 192; a third shares the 96."""
    parts = 64 if missing == "off_grid_branch" else 96
    first = prompt(192, seed=1)
    sim.ask(first[:64])
    sim.ask(first)
    second = np.concatenate([first[:parts], prompt(192 - parts, seed=2)])
    sim.ask(second)
    return probe(sim, first[:parts], missing, "cold")


def abort_slot_reuse(sim: Direct, missing: str) -> float:
    """A's prefix lies on the host. A is aborted while it loads, and B needs the whole device."""
    a = prompt(600, seed=1)
    sim.ask(a)
    for i in range(4):
        sim.ask(prompt(250, seed=20 + i))  # push A off the device
    busy = sim.send(prompt(20, seed=5), new=12)
    sim.scheduler.step()
    waiting = sim.send(np.concatenate([a[:512], prompt(30, seed=6)]), new=2)
    sim.scheduler.step()
    if missing == "abort_while_loading":
        sim.drain()
    sim.scheduler.abort(waiting.rid)
    size = 100 if missing == "slot_reuse" else 700
    b = sim.send(prompt(size, seed=7), new=60, score_from=size)
    sim.drain()
    assert busy.finish is not None
    return max(served_minus_cold(sim, b, "cold"), probe(sim, b.ids[: size // 2], missing, "cold2"))


def retract_lost_state(sim: Direct, missing: str) -> float:
    """Two generations outgrow the pool; a third request takes the slots of the retracted one."""
    sent = [sim.send(prompt(100, seed=i), new=200, score_from=100) for i in range(2)]
    sim.send(prompt(40, seed=5), new=5)
    sim.drain()
    assert (sim.counters.retractions > 0) == (missing != "retraction")
    return max(served_minus_cold(sim, r, f"cold{i}") for i, r in enumerate(sent))


def tenant_key_collision(sim: Direct, missing: str) -> float:
    """One tenant uses the adapter; another, on the base model, has the adapter's name as its key."""
    document = prompt(300)
    sim.send(document, lora=None if missing == "lora" else "adapter-a")
    sim.drain()
    if missing == "prefix_hit":
        assert sim.scheduler.flush()
    key = "tenant-b" if missing == "colliding_key" else "adapter-a"
    ids = np.concatenate([document[:256], prompt(24, seed=9)])
    warm, cold = sim.ask(ids, score_from=256, key=key), sim.ask(ids, score_from=256, key="cold")
    return worst(scores(warm) - scores(cold))


def host_tier_race(sim: Direct, missing: str) -> float:
    """A prefix is written through, pushed off the device, and loaded back by the next request with it."""
    length = 64 if missing == "slow_link" else 512
    document = prompt(length, seed=1)
    sim.ask(document)
    if missing != "host_hit":
        for i in range(5):
            sim.ask(prompt(250, seed=20 + i))
    ids = np.concatenate([document, prompt(24, seed=9)])
    warm = sim.ask(ids, score_from=length)
    if sim.cache.host is not None:
        assert (warm.cached_host > 0) == (missing != "host_hit")
    return worst(scores(warm) - scores(sim.ask(ids, score_from=length, key="cold")))


def short_tail_chunk(sim: Direct, missing: str) -> float:
    """A request adds two tokens to a cached prefix; the next one resumes from the same checkpoint."""
    document = prompt(256)
    sim.ask(document)
    if missing == "prefix_hit":
        assert sim.scheduler.flush()
    sim.ask(np.concatenate([document, prompt(8 if missing == "short_tail" else 2, seed=3)]))
    again = prompt(256, seed=5) if missing == "shared_again" else document
    _, d = sim.warm_minus_cold(np.concatenate([again, prompt(24, seed=4)]), 256, "cold")
    return worst(d)


def slot_reuse_initial_state(sim: Direct, missing: str) -> float:
    """A fresh request on a server that has worked, against the same request on one that has not."""
    ids = prompt(60, seed=2)
    truth = scores(Direct(SimConfig(numerics="exact", model=sim.config.model)).ask(ids, score_from=0))
    if missing != "state_slot_reuse":
        for i in range(3):
            sim.ask(prompt(80, seed=30 + i), key="dropped")
        assert sim.scheduler.flush()
    start = 0
    if missing == "fresh_request":
        sim.cache.states.short[:] = 0.0  # nothing to inherit: the prefix below is written on clean slots
        sim.ask(ids[:50])
        for i in range(3):
            sim.ask(prompt(80, seed=30 + i), key="again")
        start = 50
    asked = sim.ask(ids, score_from=start)
    assert asked.cached == start
    return worst(scores(asked) - truth[start:])


def chunk_boundary_slip(sim: Direct, missing: str) -> float:
    """The same ids in one request and in steps of 100 tokens."""
    ids = prompt(400 if missing == "two_chunks" else 700)
    if missing == "fresh_request":
        sim.ask(ids[:100], key="whole")
    for end in range(100, len(ids) - 24, 100):
        sim.ask(ids[:end], key="steps")
    start = len(ids) - 24
    whole, steps = (sim.ask(ids, score_from=start, key=key) for key in ("whole", "steps"))
    assert steps.cached
    assert bool(whole.cached) == (missing == "fresh_request")
    return worst(scores(whole) - scores(steps))


def late_output_rows(sim: Direct, missing: str) -> float:
    """Prompts of one length generate together: what each was served, against a cold prefill of it."""
    count = 2 if missing == "wide_decode" else 4
    sent = [sim.send(prompt(60, seed=i), new=24, score_from=60, key=f"k{i}") for i in range(count)]
    sim.drain()
    return max(served_minus_cold(sim, r, f"cold{i}") for i, r in enumerate(sent))


ABLATIONS: dict[str, Ablation] = {
    "stale-track-rows": Ablation(
        stale_track_rows,
        bound=0.05,
        without={
            "extra_buffer": {"radix_strategy": "no_buffer"},
            "prefill_graph": {"prefill_graph": False},
            "chunked_prefill": {"chunked_prefill_size": -1},
        },
    ),
    "stale-track-tail": Ablation(
        stale_track_tail,
        bound=1.0,
        without={
            "extra_buffer": {"radix_strategy": "no_buffer"},
            "decode_graph": {"decode_graph": False},
        },
    ),
    "multi-prefill-offset": Ablation(
        multi_prefill_offset, bound=0.1, without={"extra_buffer": {"radix_strategy": "no_buffer"}}
    ),
    "track-overlap": Ablation(
        track_overlap,
        bound=0.05,
        without={
            "extra_buffer": {"radix_strategy": "no_buffer", "overlap": False},
            "overlap": {"overlap": False},
        },
    ),
    "mixed-chunk-drop": Ablation(
        mixed_chunk_drop,
        bound=0.5,
        without={
            "extra_buffer": {"radix_strategy": "no_buffer"},
            "mixed_chunk": {"mixed_chunk": False},
        },
    ),
    "spec-untracked": Ablation(
        spec_untracked,
        bound=0.5,
        without={
            "extra_buffer": {"radix_strategy": "no_buffer"},
            "prefill_graph": {"prefill_graph": False},
            "speculative": {"spec_draft_tokens": 0},
        },
    ),
    "branch-state-mismatch": Ablation(
        branch_state_mismatch,
        bound=0.5,
        without={
            "extra_buffer": {"radix_strategy": "no_buffer"},
            "sliding_window": {"window": 0},
        },
    ),
    "abort-slot-reuse": Ablation(
        abort_slot_reuse,
        bound=0.5,
        settings={"max_total_tokens": 1024, "max_running_requests": 1, "chunked_prefill_size": 512},
        without={"host_tier": {"host_tokens": 0}},
    ),
    "retract-lost-state": Ablation(
        retract_lost_state,
        bound=0.5,
        settings={"max_total_tokens": 520, "max_running_requests": 2},
        without={
            "hybrid": {"model": "attention"},
            "retraction": {"max_total_tokens": 4096},
            "retraction_backup": {"retraction_backup": False},
        },
    ),
    "tenant-key-collision": Ablation(tenant_key_collision, bound=0.5),
    "host-tier-race": Ablation(
        host_tier_race,
        bound=0.5,
        settings={"max_total_tokens": 1024},
        without={"host_tier": {"host_tokens": 0}},
    ),
    "short-tail-chunk": Ablation(short_tail_chunk, bound=0.05, without={"hybrid": {"model": "attention"}}),
    "slot-reuse-initial-state": Ablation(
        slot_reuse_initial_state, bound=0.05, without={"hybrid": {"model": "attention"}}
    ),
    "chunk-boundary-slip": Ablation(
        chunk_boundary_slip, bound=0.1, without={"chunked_prefill": {"chunked_prefill_size": -1}}
    ),
    "late-output-rows": Ablation(
        late_output_rows, bound=0.5, without={"decode_graph": {"decode_graph": False}}
    ),
}
