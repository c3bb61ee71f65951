"""pressure: more tokens in flight than the server's pool holds, so that running requests are retracted.

The prompts fit, what they generate does not: only a server that runs out while it decodes retracts (SGLang
#35957, #20724). Disruptive: everybody else on the server is held up or retracted too.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, WrittenBy
from soak.plan.shapes.pool import prompts_to_fill
from soak.plan.shapes.scene import Scene

NAME = "pressure"


def make(scene: Scene) -> tuple[Item, ...]:
    """As many long generations at once as pass the pool by a quarter at their ends."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    total = draw.between(max(2, room // 2), max(2, room))
    generated = max(1, min(spec.decode_tokens, total // 2))
    length = max(1, total - generated)
    width = prompts_to_fill(spec, length + generated, 12)
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=tuple(Prompt((scene.own(length, part),)) for part in range(width)),
            max_new_tokens=generated,
            stream=draw.chance(500),
            written_by=WrittenBy.DECODE,
        ),
    )
