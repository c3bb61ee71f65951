"""tier-round-trip: a document is cached, pushed out by others, and asked again.

Where the server has a host tier, the document comes back from it (SGLang #22811, #38031); where it has none,
the document is computed again. Disruptive: it pushes out everybody else's prefixes too.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt
from soak.plan.lengths import around
from soak.plan.shapes.pool import prompts_to_fill
from soak.plan.shapes.scene import Scene

NAME = "tier-round-trip"


def make(scene: Scene) -> tuple[Item, ...]:
    """Step 0 caches a document, step 1 fills the pool with others, step 2 asks for the document again."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    tail, output = draw.between(1, 8), scene.output(draw, room // 16)
    most = max(1, room - tail - output)
    length = min(around(draw, spec.geometry, max(1, room // 3), max(1, room * 3 // 4)), most)
    document, filler = scene.own(length), max(1, room - 4)
    width = prompts_to_fill(spec, filler, 11)

    def item(step: int, prompts: tuple[Prompt, ...], generated: int, delay_us: int) -> Item:
        return Item(
            index=scene.index,
            step=step,
            shape=NAME,
            at_us=scene.at_us,
            prompts=prompts,
            max_new_tokens=generated,
            delay_us=delay_us,
            stream=False,
        )

    return (
        item(0, (Prompt((document,)),), output, 0),
        item(1, tuple(Prompt((scene.own(filler, 2 + part),)) for part in range(width)), 1, 0),
        item(2, (Prompt((document, scene.own(tail, 1))),), output, draw.between(0, 200_000)),
    )
