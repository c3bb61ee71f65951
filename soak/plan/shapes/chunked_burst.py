"""chunked-burst: several prompts of 1.2 to 3.7 chunks at once, as single requests or as one batched request.

Prompts of one burst that share a chunked prefill are what the co-batched prefill faults need (SGLang #31833,
#34184); a batched request is the surest way to have them scheduled together.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.shapes.scene import Scene

NAME = "chunked-burst"


def make(scene: Scene) -> tuple[Item, ...]:
    """Two to ``burst`` prompts; half of the bursts share a prefix with others of their window."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    width = draw.between(2, max(2, spec.burst))
    output = scene.output(draw, room // 16)
    most = max(spec.min_prompt, room - output)
    shared = draw.chance(500)
    key = scene.index // 32
    prompts = []
    for part in range(width):
        # 1.2 to 3.7 chunks in tenths of a chunk, then off the grid by a few tokens
        length = spec.geometry.chunk * draw.between(12, 37) // 10 + draw.between(0, 7)
        length = min(max(length, spec.min_prompt), most)
        common = length // 2 if shared else 0
        segments = (Segment("burst-shared", key, 0, common), scene.own(length - common, part))
        prompts.append(Prompt(tuple(s for s in segments if s.length)))
    batched = draw.chance(500)
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=tuple(prompts),
            max_new_tokens=output,
            batched=batched,
            stream=not batched and draw.chance(500),
        ),
    )
