"""The shapes by name, in the order in which documents and metrics list them."""

from __future__ import annotations

from collections.abc import Callable

from soak.plan.item import Item
from soak.plan.shapes import chunked_burst, decode_seeded, long_context, shared_prefix
from soak.plan.shapes.scene import Scene

Shape = Callable[[Scene], tuple[Item, ...]]

SHAPES: dict[str, Shape] = {
    module.NAME: module.make for module in (shared_prefix, long_context, chunked_burst, decode_seeded)
}
