"""strict-json: several requests at once, each bound to a JSON schema with a constant of its own.

An answer that does not parse, or holds another request's constant, is wrong whatever the model is (vLLM
#44993, #50702). A server that cannot be bound to a schema is not asked.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt
from soak.plan.shapes.scene import Scene
from soak.plan.strict import TOKENS

NAME = "strict-json"


def make(scene: Scene) -> tuple[Item, ...]:
    """Two to twice ``burst`` prompts at once; a third of the indices share their prompt's beginning."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    answer = max(4, min(TOKENS, room // 2))
    length = min(draw.between(8, max(8, spec.min_prompt)), max(1, room - answer))
    common = length // 2 if draw.chance(333) else 0
    width = draw.between(2, max(2, 2 * spec.burst))
    prompts = []
    for part in range(width):
        segments = (scene.own(common, width), scene.own(length - common, part))
        prompts.append(Prompt(tuple(s for s in segments if s.length)))
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=tuple(prompts),
            max_new_tokens=answer,
            temperature_milli=scene.temperature_milli(draw),
            stream=draw.chance(300),
            strict=True,
        ),
    )
