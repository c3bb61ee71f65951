"""For every fault of the simulator that requests alone can bring about, a trace that does, with bystanders.

The conditions are those of ``tests/sim/ablations.py``; here they are reached through the front door.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from soak.incident.trace import Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from tests.incident.traces import Script, random_ids

UNREACHABLE = {
    "tenant-key-collision": "needs an adapter, and no request of soak names one",
    "chunk-boundary-slip": "spoils cold passes alike: tests/run/test_invariance.py plays it",
    "late-output-rows": "spoils no cache: tests/run/test_batch_decoding.py plays it",
    "identity-swap": "spoils no cache: tests/incident/test_canary_replay.py plays it",
}


@dataclass(frozen=True)
class Play:
    """settings: the simulator's, beyond the fault's own. scripted: whether a script can say it."""

    make: Callable[[], Trace]
    settings: dict[str, Any] = field(default_factory=dict)
    scripted: bool = True


def bystanders(script: Script, prompts: int = 8) -> None:
    for number in range(prompts):
        script.send(random_ids(14 + number % 5, 500 + len(script.sent)))
        script.rest()


def stale_track_rows() -> Trace:
    script = Script()
    bystanders(script)
    _, victim = script.send(random_ids(128, 1), random_ids(128, 2))
    script.rest()
    script.send(random_ids(100, 3))
    script.rest()
    bystanders(script, 4)
    return script.ask(victim)


def stale_track_tail() -> Trace:
    script = Script()
    bystanders(script)
    (victim,) = script.send(random_ids(100, 1), new=60)
    script.rest()
    bystanders(script, 4)
    return script.ask(victim, decoded=True, prefix=128)


def multi_prefill_offset() -> Trace:
    script = Script()
    bystanders(script)
    _, victim = script.send(random_ids(90, 1), random_ids(130, 2))
    script.rest()
    return script.ask(victim, prefix=128)


def track_overlap() -> Trace:
    script = Script()
    bystanders(script)
    (victim,) = script.send(random_ids(100, 1), new=28)
    script.rest()
    return script.ask(victim, decoded=True, prefix=127)


def mixed_chunk_drop() -> Trace:
    script = Script()
    bystanders(script)
    script.send(random_ids(40, 1), new=200, lasts_us=400_000)
    script.now_us += 15_000
    (victim,) = script.send(random_ids(200, 2))
    script.rest()
    return script.ask(victim, prefix=192)


def spec_untracked() -> Trace:
    script = Script()
    bystanders(script)
    (victim,) = script.send(random_ids(128, 1), new=5)
    script.rest()
    return script.ask(victim)


def branch_state_mismatch() -> Trace:
    script = Script()
    bystanders(script)
    first = random_ids(192, 1)
    script.send(first[:64])
    script.rest()
    (victim,) = script.send(first)
    script.rest()
    script.send(np.concatenate([first[:96], random_ids(96, 2)]))
    script.rest()
    return script.ask(victim, prefix=96)


def abort_slot_reuse() -> Trace:
    script = Script()
    a = random_ids(600, 1)
    script.send(a)
    script.rest()
    for number in range(4):
        script.send(random_ids(250, 20 + number))
        script.rest()
    script.send(random_ids(20, 5), new=12, lasts_us=60_000)
    script.now_us += 1_000
    script.send(np.concatenate([a[:512], random_ids(30, 6)]), new=2, abort_us=4_000, lasts_us=9_000)
    script.now_us += 8_000
    (victim,) = script.send(random_ids(700, 7), new=60)
    script.rest()
    return script.ask(victim, prefix=512)


def retract_lost_state() -> Trace:
    script = Script()
    victim, _ = script.send(random_ids(100, 1), random_ids(100, 2), new=150)
    script.send(random_ids(40, 5), new=5)
    script.rest()
    trace = script.ask(victim, decoded=True)
    return replace(trace, case=replace(trace.case, kind=ResumeKind.RETRACTED))


def host_tier_race() -> Trace:
    script = Script()
    (victim,) = script.send(random_ids(512, 1))
    script.rest()
    for number in range(5):
        script.send(random_ids(250, 20 + number))
        script.rest()
    trace = script.ask(victim)
    return replace(trace, case=replace(trace.case, kind=ResumeKind.HOST))


def short_tail_chunk() -> Trace:
    script = Script()
    bystanders(script)
    (victim,) = script.send(random_ids(256, 1))
    script.rest()
    script.send(np.concatenate([script.sent[victim].ids, random_ids(2, 3)]))
    script.rest()
    return script.ask(victim)


def slot_reuse_initial_state() -> Trace:
    script = Script()
    for number in range(3):
        script.send(random_ids(80, 30 + number), namespace=f"other {number}")
        script.rest()
    (victim,) = script.send(random_ids(60, 2))
    script.rest()
    trace = script.ask(victim)
    return replace(trace, case=replace(trace.case, cold_again=trace.case.warm))


def any_resume() -> Trace:
    script = Script()
    bystanders(script)
    (victim,) = script.send(random_ids(300, 1))
    script.rest()
    return script.ask(victim, prefix=256)


def nulls() -> Trace:
    script = Script()
    for number in range(6):
        script.send(random_ids(120, number), return_logprob=True, new=40)
        script.rest()
    return script.ask(0, outcome=ProbeOutcome.NON_FINITE)


PLAYS = {
    "stale-track-rows": Play(stale_track_rows),
    "stale-track-tail": Play(stale_track_tail),
    "multi-prefill-offset": Play(multi_prefill_offset),
    "track-overlap": Play(track_overlap),
    "mixed-chunk-drop": Play(mixed_chunk_drop),
    "spec-untracked": Play(spec_untracked),
    "branch-state-mismatch": Play(branch_state_mismatch),
    "abort-slot-reuse": Play(
        abort_slot_reuse,
        {"max_total_tokens": 1024, "max_running_requests": 1, "chunked_prefill_size": 512},
    ),
    "retract-lost-state": Play(retract_lost_state, {"max_total_tokens": 420, "max_running_requests": 2}),
    "host-tier-race": Play(host_tier_race, {"max_total_tokens": 1024}),
    "short-tail-chunk": Play(short_tail_chunk),
    "slot-reuse-initial-state": Play(slot_reuse_initial_state, scripted=False),
    "state-not-restored": Play(any_resume),
    "middle-truncated": Play(any_resume),
    "nan-logprob": Play(nulls, {"numerics": "production"}, scripted=False),
}
