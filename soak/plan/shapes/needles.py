"""needles: a frozen fact at a known depth of a long document, to be asked for once the document is cached.

What a long context forgets shows as a fact that is recalled cold and not from the cache. In text the fact is
a sentence with a number in it; where there is no text it is a row of ids, asked for by its beginning, which
is all that a model without a tokenizer can be asked to remember.
"""

from __future__ import annotations

from soak.plan.item import Item, Needle, Prompt, Segment
from soak.plan.shapes.scene import Scene

NAME = "needles"
DEPTHS = (0, 25, 50, 75, 100)  # per cent of the document before the fact
_SHARES = (4, 2, 1)  # the document takes a quarter, half or all of the room
_KEY, _VALUE = 8, 4  # ids of a fact without text


def make(scene: Scene) -> tuple[Item, ...]:
    """One document, its fact at a drawn depth; what it is asked later is planned with it."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    facts = spec.geometry.facts
    if facts:
        which = draw.below(len(facts))
        lengths = [len(part) for part in facts[which]]
        fact, question, answer = (
            Segment(part, which, 0, length)
            for part, length in zip(("fact", "question", "answer"), lengths, strict=True)
        )
    else:
        fact = Segment("needle", scene.index, 0, _KEY + _VALUE)
        question = Segment("needle", scene.index, 0, _KEY)
        answer = Segment("needle", scene.index, _KEY, _VALUE)
    depth = draw.choice(DEPTHS)
    output = draw.between(1, 4)
    most = room - max(output, question.length + answer.length + 1)
    length = max(1, most // draw.choice(_SHARES) - fact.length)
    before = length * depth // 100
    segments = (scene.own(before), fact, scene.own(length - before, 1))
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=(Prompt(tuple(s for s in segments if s.length)),),
            max_new_tokens=output,
            stream=draw.chance(500),
            needle=Needle(depth, question, answer),
        ),
    )
