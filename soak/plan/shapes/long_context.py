"""long-context: prompts near the limit, asked several times, so that what is far away must be remembered."""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.lengths import around
from soak.plan.shapes.scene import Scene

NAME = "long-context"
_ASKED = 3  # each long document belongs to a window of this many visits
_WINDOW = 24  # indices that share a document's number


def make(scene: Scene) -> tuple[Item, ...]:
    """A document of 60% to 97% of the room, shared by the indices of a window, and a tail of its own."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    document = (scene.index // _WINDOW) * _ASKED + draw.below(_ASKED)
    of_document = scene.shared_draw("long-context-document", document)
    output = scene.output(draw, room // 16)
    tail = draw.between(1, max(1, room // 50))
    most = room - output - tail
    length = around(of_document, spec.geometry, room * 6 // 10, max(room * 6 // 10, room * 97 // 100))
    prompt = Prompt((Segment("long-document", document, 0, min(length, most)), scene.own(tail)))
    return (scene.single(NAME, draw, prompt, output),)
