"""co-batched: several short prompts in one batched request that fit one prefill together, then a narrow one.

Requests that share a prefill batch, off the state grid, are what SGLang #31833 needs. A narrower prefill
right after the wide one, while the captured graph still holds what the wide one left in its rows, is what
SGLang #34184 needs; the prompts of the wide one are its victims.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt
from soak.plan.shapes.scene import Scene

NAME = "co-batched"
_NARROW = 64  # below this, captured prefill graphs are not replayed


def make(scene: Scene) -> tuple[Item, ...]:
    """Step 0: two to ``burst`` prompts within one chunk; step 1: a single prompt, a moment later."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    grid = spec.geometry.state_grid or max(spec.geometry.page, 16)
    budget = min(spec.geometry.chunk, room)
    output = draw.between(1, 4)
    most = max(1, room - output)
    width = draw.between(2, max(2, min(spec.burst, budget // (max(_NARROW, grid) + 1))))
    each = max(1, min(budget // width, most))
    prompts = []
    for part in range(width):
        length = draw.between(min(each, max(_NARROW, grid)), each)
        if draw.chance(500):
            length = max(1, length // grid * grid)  # a state at the very end
        elif length % grid == 0:
            length = length + 1 if length < each else max(1, length - 1)
        prompts.append(Prompt((scene.own(min(length, most), part),)))
    narrow = min(max(1, draw.between(_NARROW, max(_NARROW, budget // 2))), most)
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=tuple(prompts),
            max_new_tokens=output,
            batched=True,
            stream=False,
        ),
        Item(
            index=scene.index,
            step=1,
            shape=NAME,
            at_us=scene.at_us,
            prompts=(Prompt((scene.own(narrow, width),)),),
            max_new_tokens=output,
            delay_us=draw.between(0, 50_000),
            stream=False,
        ),
    )
