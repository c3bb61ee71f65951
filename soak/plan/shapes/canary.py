"""canary: frozen prompts, each asked again and again, alone and with others, whose answers are known by then.

An answer that is another canary's is an answer handed to the wrong request (SGLang #17259, ollama #17475):
fluent, and right in every cache, so that no comparison of cached with cold can tell.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.shapes.scene import Scene

NAME = "canary"
CANARIES = 12
ANSWER = 16  # tokens: all of one length, as answers that end together are the ones that change hands
_SHORTEST, _LONGEST = 24, 56  # tokens; several fit one prefill


def make(scene: Scene) -> tuple[Item, ...]:
    """One canary alone, or two to ``burst`` different ones at once; half of those in one request."""
    draw, room = scene.draw(NAME), scene.room
    width = 1 if draw.chance(250) else draw.between(2, max(2, min(scene.spec.burst, CANARIES)))
    free = list(range(CANARIES))
    keys = [free.pop(draw.below(len(free))) for _ in range(width)]
    answer = min(ANSWER, room // 4)
    prompts = []
    for key in keys:
        length = scene.shared_draw("canary-length", key).between(_SHORTEST, _LONGEST)
        prompts.append(Prompt((Segment("canary", key, 0, min(length, room - answer)),)))
    batched = width > 1 and draw.chance(500)
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=tuple(prompts),
            max_new_tokens=answer,
            batched=batched,
            stream=not batched and draw.chance(300),
        ),
    )


def key_of(item: Item, part: int) -> int:
    """Which canary a prompt of such an item is."""
    return item.prompts[part].segments[0].key
