"""The conjunctions: sets of conditions that must have held together for a known class of fault to show.

Each by the observations that show that it was reached and the probes that look at a victim of it. Pure data
and predicates; who counts them is ``coverage``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from soak.drive.coverage_state import CoverageState
from soak.drive.observation import Observation
from soak.oracle.probe import ProbeResult, ResumeKind
from soak.plan.geometry import Geometry
from soak.sglang.exchange import Outcome


@dataclass(frozen=True, slots=True)
class Conjunction:
    """One of them. reached_by: the shape; conditions: their names in the known-fault table.

    probe_confirms: a probe that looked at a victim of it went through it as well. by_users: whether other
    people's traffic may come to it as well.
    """

    name: str
    reached_by: str
    conditions: tuple[str, ...]
    by_load: Callable[[Observation, Geometry], CoverageState]
    by_probe: Callable[[ProbeResult, Geometry], bool]
    note: str
    applicable: Callable[[Geometry], bool] = lambda geometry: True
    probe_confirms: bool = False
    by_users: bool = True


_SHORT = 3  # tokens: as far as a short convolution reaches back


def _confirmed(held: bool) -> CoverageState:
    return CoverageState.CONFIRMED if held else CoverageState.NOT_REACHED


def _presumed(held: bool) -> CoverageState:
    return CoverageState.PRESUMED if held else CoverageState.NOT_REACHED


CONJUNCTIONS = (
    Conjunction(
        "prefix-hit",
        "shared-prefix",
        ("prefix_hit",),
        lambda seen, _: _confirmed(seen.item.shape == "shared-prefix" and seen.answer.cached_tokens > 0),
        lambda probe, _: probe.shape == "shared-prefix",
        "a later request resumed from what an earlier one left; the server's cached_tokens say so",
    ),
    Conjunction(
        "far-context-resume",
        "long-context",
        ("prefix_hit",),
        lambda seen, g: _confirmed(
            seen.item.shape == "long-context" and seen.answer.cached_tokens > min(g.chunk, len(seen.ids) // 2)
        ),
        lambda probe, g: (
            probe.shape == "long-context" and probe.resume_boundary > min(g.chunk, probe.victim_tokens // 2)
        ),
        "a prompt near the context limit resumed from more than a chunk of its own past",
        probe_confirms=True,
    ),
    Conjunction(
        "co-batched-chunked-prefill",
        "chunked-burst",
        ("co_batched_prefill", "chunked_prefill"),
        lambda seen, _: _presumed(
            seen.item.shape == "chunked-burst" and seen.answer.ok and seen.prefilling_companions > 0
        ),
        lambda probe, _: probe.shape == "chunked-burst",
        "two or more prompts longer than a chunk were in flight together; no answer says who shared a batch",
        applicable=lambda g: g.chunk < g.context_len - 1,
    ),
    Conjunction(
        "decode-written-resume",
        "decode-seeded",
        ("decode_past_interval",),
        lambda seen, _: _confirmed(_resumed_in_generated(seen)),
        lambda probe, _: probe.kind is ResumeKind.DECODE,
        "a request resumed inside tokens that an earlier one had generated",
        probe_confirms=True,
    ),
    Conjunction(
        "co-batched-prefill",
        "co-batched",
        ("co_batched_prefill", "off_grid_start"),
        lambda seen, _: _presumed(seen.item.shape == "co-batched" and seen.item.batched and seen.answer.ok),
        lambda probe, _: probe.shape == "co-batched",
        "several short prompts came in one request and fit one prefill; no answer says who shared a batch",
    ),
    Conjunction(
        "narrow-after-wide-prefill",
        "co-batched",
        ("prefill_graph",),
        lambda seen, _: _presumed(seen.item.shape == "co-batched" and seen.item.step == 1 and seen.answer.ok),
        lambda probe, _: probe.shape == "co-batched",
        "a single prefill came right after a wide one, which may have left its rows behind",
    ),
    Conjunction(
        "branch-resume",
        "branching",
        ("off_grid_branch",),
        lambda seen, _: _confirmed(
            seen.item.shape == "branching" and seen.item.step == 0 and seen.answer.cached_tokens > 0
        ),
        lambda probe, _: probe.shape == "branching",
        "a prompt that parts from an earlier one resumed from their common trunk",
    ),
    Conjunction(
        "short-tail-resume",
        "branching",
        ("short_tail", "shared_again"),
        lambda seen, _: _confirmed(
            seen.item.shape == "branching"
            and seen.answer.ok
            and 0 < len(seen.ids) - seen.answer.cached_tokens <= _SHORT
            and seen.answer.cached_tokens > 0
        ),
        # of a prefix that was resumed from so, not of one that ends where its own state was left
        lambda probe, _: (
            probe.shape == "branching" and 0 < probe.victim_tokens - probe.resume_boundary <= _SHORT
        ),
        "a request added at most three tokens to what was cached",
    ),
    Conjunction(
        "identical-together",
        "identical",
        (),
        lambda seen, _: _presumed(seen.item.shape == "identical" and seen.answer.ok and seen.companions > 0),
        lambda probe, _: probe.shape == "identical",
        "the same prompt was in flight several times",
    ),
    Conjunction(
        "tenants-by-turns",
        "tenant-ping-pong",
        ("colliding_key",),
        lambda seen, _: _confirmed(seen.item.tenant is not None and seen.answer.cached_tokens > 0),
        lambda probe, _: probe.shape == "tenant-ping-pong",
        "a tenant resumed in its own namespace from a document that others asked about as well",
    ),
    Conjunction(
        "abort-in-prefill",
        "abort-storm",
        ("abort_while_loading", "slot_reuse"),
        lambda seen, _: _presumed(
            seen.item.shape == "abort-storm" and _taken_back(seen) and _in_prefill(seen)
        ),
        lambda probe, _: probe.shape == "abort-storm",
        "a request was taken back before its first token, and the same prefix asked again",
    ),
    Conjunction(
        "abort-in-decode",
        "abort-storm",
        (),
        lambda seen, _: _presumed(_taken_back(seen) and not _in_prefill(seen)),
        lambda probe, _: probe.shape == "abort-storm",
        "a request was taken back while it generated, and the same prefix asked again",
    ),
    Conjunction(
        "retraction",
        "pressure",
        ("retraction", "retraction_backup"),
        lambda seen, _: _confirmed(seen.answer.num_retractions > 0),
        lambda probe, _: probe.kind is ResumeKind.RETRACTED,
        "the server retracted a running request for want of memory; its num_retractions says so",
    ),
    Conjunction(
        "host-tier-resume",
        "tier-round-trip",
        ("host_tier", "host_hit"),
        lambda seen, _: _confirmed(seen.answer.cached_details.get("host", 0) > 0),
        lambda probe, _: probe.kind is ResumeKind.HOST,
        "a prefix came back from host memory; the server's cached_tokens_details says so",
        applicable=lambda g: g.host_tier is not False,
        probe_confirms=True,
    ),
    Conjunction(
        "canaries-together",
        "canary",
        (),
        lambda seen, _: _presumed(seen.item.shape == "canary" and seen.answer.ok and seen.companions > 0),
        lambda probe, _: probe.shape == "canary",
        "a frozen prompt whose answer is known was answered while others were",
        by_users=False,
    ),
    Conjunction(
        "strict-json-together",
        "strict-json",
        (),
        lambda seen, _: _confirmed(
            seen.item.strict and seen.answer.ok and seen.answer.text is not None and seen.companions > 0
        ),
        lambda probe, _: probe.shape == "strict-json",
        "several answers were bound to schemas of their own at once; their text came back",
        applicable=lambda g: g.grammar,
        by_users=False,
    ),
    Conjunction(
        "adapters-by-turns",
        "adapters",
        ("lora", "colliding_key"),
        lambda seen, _: _presumed(seen.item.keyed is not None and seen.answer.ok),
        lambda probe, _: probe.shape == "adapters",
        "a document that an adapter was asked about was asked about without it, in a namespace of its name",
        applicable=lambda g: bool(g.adapters),
        by_users=False,
    ),
    Conjunction(
        "needle-recalled",
        "needles",
        ("prefix_hit",),
        lambda seen, _: CoverageState.NOT_REACHED,
        lambda probe, _: probe.needle is not None and probe.needle.depth < 100,
        "a document that was cached was asked for a fact that lies far back in it",
        probe_confirms=True,
        by_users=False,
    ),
    Conjunction(
        "queued-together",
        "pause-queue",
        ("co_batched_prefill", "off_grid_start"),
        lambda seen, _: _presumed(seen.held and seen.answer.ok and len(seen.item.prompts) > 1),
        lambda probe, _: probe.shape == "pause-queue",
        "several prompts queued while the server was paused, and were scheduled when it went on",
        by_users=False,
    ),
    Conjunction(
        "retraction-by-pause",
        "pause-queue",
        ("retraction", "retraction_backup"),
        lambda seen, _: _confirmed(seen.item.shape == "pause-queue" and seen.answer.num_retractions > 0),
        lambda probe, _: probe.shape == "pause-queue" and probe.kind is ResumeKind.RETRACTED,
        "a pause sent a running request back to the queue; its num_retractions says so",
        by_users=False,
    ),
    Conjunction(
        "abort-in-load-back",
        "abort-load",
        ("host_tier", "abort_while_loading", "slot_reuse"),
        lambda seen, g: _presumed(_taken_back(seen) and seen.item.shape == "abort-load"),
        lambda probe, _: probe.shape == "abort-load",
        "a document that had been pushed out was asked for and taken back while others needed its room",
        applicable=lambda g: g.host_tier is not False,
        by_users=False,
    ),
)


def _resumed_in_generated(seen: Observation) -> bool:
    # A follow-up's own segments end its prompt; before them stand its parent's prompt and output. That more
    # than the parent's prompt was cached shows in the probes; here, that the hit reaches the last tokens.
    if seen.item.parent is None:
        return False
    own = sum(p.length for p in seen.item.prompts)
    return seen.answer.cached_tokens >= len(seen.ids) - own - 1 > 0


def _taken_back(seen: Observation) -> bool:
    return seen.item.abort is not None and seen.answer.outcome is Outcome.TAKEN_BACK


def _in_prefill(seen: Observation) -> bool:
    return seen.item.abort is not None and seen.item.abort.after_tokens is None
