"""The shapes by name, in the order in which documents and metrics list them."""

from __future__ import annotations

from collections.abc import Callable

from soak.plan.geometry import Geometry
from soak.plan.item import Item, WrittenBy
from soak.plan.shapes import (
    abort_load,
    abort_storm,
    adapters,
    branching,
    canary,
    chunked_burst,
    co_batched,
    decode_seeded,
    identical,
    long_context,
    needles,
    pause_queue,
    planted,
    pressure,
    shared_prefix,
    strict_json,
    tenant_ping_pong,
    tier_round_trip,
)
from soak.plan.shapes.scene import Scene

Shape = Callable[[Scene], tuple[Item, ...]]

_MODULES = (
    shared_prefix,
    long_context,
    chunked_burst,
    decode_seeded,
    co_batched,
    branching,
    identical,
    tenant_ping_pong,
    abort_storm,
    pressure,
    tier_round_trip,
    canary,
    strict_json,
    adapters,
    pause_queue,
    abort_load,
    needles,
)
# New shapes stand last: a draw goes by this order, and plans without them stay what they were.

SHAPES: dict[str, Shape] = {module.NAME: module.make for module in _MODULES}

MAKERS: dict[str, Shape] = {**SHAPES, planted.NAME: planted.make}
"""What a plan may hold: the shapes that a config may choose, and what is planted where it chooses none."""

DISRUPTIVE = frozenset(module.NAME for module in (pressure, tier_round_trip, pause_queue, abort_load))
"""Shapes that hurt whoever else uses the server; off unless the config says otherwise."""

_PUSHING = frozenset({(abort_load.NAME, 0), (abort_load.NAME, 1), (tier_round_trip.NAME, 1)})
"""Steps that only prepare: what they leave in the cache is there to push out, or to be pushed out."""


def leaves_a_victim(item: Item) -> bool:
    """Whether what the item leaves in the cache is worth asking about.

    Dozens of prompts that fill a pool would keep probes from the few that something may have happened to.
    """
    return (item.shape, item.step) not in _PUSHING


_GONE_ON_FROM = frozenset({(branching.NAME, 0)})
"""Steps whose prompt is asked about, and whose answer the next step goes on from."""


def prefixes_of(item: Item) -> tuple[WrittenBy, ...]:
    """How each prefix was written that an item leaves to be asked about.

    What a follow-up resumed from may be spoiled by that: it ends in the answer, behind the prompt.
    """
    if (item.shape, item.step) in _GONE_ON_FROM:
        return (item.written_by, WrittenBy.DECODE)
    return (item.written_by,)


_NEEDS: dict[str, Callable[[Geometry], bool]] = {
    strict_json.NAME: lambda g: g.grammar,
    adapters.NAME: lambda g: bool(g.adapters),
    abort_load.NAME: lambda g: g.host_tier is not False,
}


def servable(shape: str, geometry: Geometry) -> bool:
    """Whether a server of that geometry can be asked what the shape asks at all."""
    needs = _NEEDS.get(shape)
    return needs is None or needs(geometry)
