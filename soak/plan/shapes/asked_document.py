"""One prompt about a document that the indices of a window share, with a tail of its own.

No shape: several shapes ask about such a document, each in namespaces of its own kind.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.shapes.scene import Scene
from soak.plan.words import Draw


def asked_document(scene: Scene, shape: str, purpose: str, window: int) -> tuple[Item, Draw]:
    """The item, and the shape's draw after it. purpose: names the document's tokens; window: in indices."""
    spec, draw, room = scene.spec, scene.draw(shape), scene.room
    key = scene.index // window
    output = scene.output(draw, room // 16)
    tail = draw.between(1, max(1, room // 32))
    most = max(1, room - output - tail)
    least = spec.min_prompt
    length = min(scene.shared_length(purpose, key, least, max(least, room // 2)), most)
    prompt = Prompt((Segment(purpose, key, 0, length), scene.own(tail)))
    return scene.single(shape, draw, prompt, output), draw
