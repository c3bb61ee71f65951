"""The shapes by name, in the order in which documents and metrics list them."""

from __future__ import annotations

from collections.abc import Callable

from soak.plan.item import Item
from soak.plan.shapes import (
    abort_storm,
    branching,
    chunked_burst,
    co_batched,
    decode_seeded,
    identical,
    long_context,
    planted,
    pressure,
    shared_prefix,
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
)

SHAPES: dict[str, Shape] = {module.NAME: module.make for module in _MODULES}

MAKERS: dict[str, Shape] = {**SHAPES, planted.NAME: planted.make}
"""What a plan may hold: the shapes that a config may choose, and what is planted where it chooses none."""

DISRUPTIVE = frozenset(module.NAME for module in (pressure, tier_round_trip))
"""Shapes that hurt whoever else uses the server; off unless the config says otherwise."""
