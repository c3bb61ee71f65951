"""long-context: prompts near the limit, asked several times, so that what is far away must be remembered."""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.shapes.scene import Scene

NAME = "long-context"
_ASKED = 3  # each long document belongs to a window of this many visits
_WINDOW = 24  # indices that share a document's number


def make(scene: Scene) -> tuple[Item, ...]:
    """A document of 60% to 97% of the room, shared by the indices of a window, and a tail of its own."""
    draw, room = scene.draw(NAME), scene.room
    document = (scene.index // _WINDOW) * _ASKED + draw.below(_ASKED)
    output = scene.output(draw, room // 16)
    tail = draw.between(1, max(1, room // 50))
    most = room - output - tail
    least = room * 6 // 10
    length = scene.shared_length("long-context-document", document, least, max(least, room * 97 // 100))
    prompt = Prompt((Segment("long-document", document, 0, min(length, most)), scene.own(tail)))
    return (scene.single(NAME, draw, prompt, output),)
