"""identical: one prompt several times at once, so that requests share, split and swap cache entries."""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.lengths import around
from soak.plan.shapes.scene import Scene

NAME = "identical"
_WINDOW = 12  # indices that ask the same


def make(scene: Scene) -> tuple[Item, ...]:
    """Two to ``burst`` times the same prompt; half of the indices ask what earlier ones have asked."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    again = draw.chance(500)
    key = scene.index // _WINDOW if again else scene.index
    drawn = scene.shared_draw("identical-again" if again else NAME, key)
    output = scene.output(draw, room // 16)
    most = max(1, room - output)
    length = min(around(drawn, spec.geometry, spec.min_prompt, max(spec.min_prompt, room // 2)), most)
    prompt = Prompt((Segment("identical-again" if again else "identical-once", key, 0, length),))
    batched = draw.chance(300)
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=(prompt,) * draw.between(2, max(2, spec.burst)),
            max_new_tokens=output,
            batched=batched,
            stream=not batched and draw.chance(500),
        ),
    )
