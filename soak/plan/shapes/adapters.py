"""adapters: one document by turns with a LoRA adapter, without, and without in a namespace of its name.

What an adapter computed must never be found by a request without it, nor by another adapter's (SGLang #24638,
vLLM #30931). A server without adapters is not asked.
"""

from __future__ import annotations

from dataclasses import replace

from soak.plan.item import Item
from soak.plan.shapes.asked_document import asked_document
from soak.plan.shapes.scene import Scene

NAME = "adapters"
_WINDOW = 12  # indices that share a document


def make(scene: Scene) -> tuple[Item, ...]:
    """A document of the window and a tail of its own: the adapter, nobody, or nobody under its name."""
    item, draw = asked_document(scene, NAME, "adapter-document", _WINDOW)
    adapters = scene.spec.geometry.adapters
    if not adapters:
        return (item,)
    which = draw.below(len(adapters))
    role = draw.weighted((2, 2, 1))
    if role == 0:
        return (replace(item, adapter=which),)
    return (replace(item, keyed=which),) if role == 1 else (item,)
