"""adapters: one document by turns with a LoRA adapter, without, and without in a namespace of its name.

What an adapter computed must never be found by a request without it, nor by another adapter's (SGLang #24638,
vLLM #30931). A server without adapters is not asked.
"""

from __future__ import annotations

from dataclasses import replace

from soak.plan.item import Item, Prompt, Segment
from soak.plan.lengths import around
from soak.plan.shapes.scene import Scene

NAME = "adapters"
_WINDOW = 12  # indices that share a document


def make(scene: Scene) -> tuple[Item, ...]:
    """A document of the window and a tail of its own: the adapter, nobody, or nobody under its name."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    key = scene.index // _WINDOW
    of_document = scene.shared_draw("adapter-document", key)
    output = scene.output(draw, room // 16)
    tail = draw.between(1, max(1, room // 32))
    most = max(1, room - output - tail)
    length = min(around(of_document, spec.geometry, spec.min_prompt, max(spec.min_prompt, room // 2)), most)
    prompt = Prompt((Segment("adapter-document", key, 0, length), scene.own(tail)))
    item = scene.single(NAME, draw, prompt, output)
    if not spec.geometry.adapters:
        return (item,)
    which = draw.below(len(spec.geometry.adapters))
    role = draw.weighted((2, 2, 1))
    if role == 0:
        return (replace(item, adapter=which),)
    return (replace(item, keyed=which),) if role == 1 else (item,)
