"""pause-queue: the server is paused while several prompts queue, or while several generate, and goes on.

What queued in a pause is prefilled together, whoever schedules; what generated is retracted and comes back,
though no memory was short (SGLang #31833, #35957). Disruptive: everybody on the server waits.
"""

from __future__ import annotations

from soak.plan.item import Hold, Item, Pause, Prompt, WrittenBy
from soak.plan.shapes.scene import Scene

NAME = "pause-queue"


def make(scene: Scene) -> tuple[Item, ...]:
    """Half: two to ``burst`` prompts of one chunk together queue. Half: two or three generations go back."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    if draw.chance(500):
        width = draw.between(2, max(2, min(spec.burst, spec.pressure)))
        output = scene.output(draw, room // 16)
        most = max(1, min(spec.geometry.chunk, room - output))
        each = max(1, min(most, max(spec.min_prompt, spec.geometry.chunk // width)))
        lengths = [draw.between(min(each, 32), each) for _ in range(width)]
        hold = Hold(Pause.IN_PLACE, draw.between(20_000, 120_000))
        written_by = WrittenBy.PREFILL
    else:
        width = draw.between(2, 3)
        output = max(8, min(spec.decode_tokens // 2, room // 3))
        length = min(draw.between(spec.min_prompt, max(spec.min_prompt, room // 4)), max(1, room - output))
        lengths = [length] * width
        hold = Hold(Pause.RETRACT, draw.between(0, 30_000), after_tokens=draw.between(2, max(2, output // 2)))
        written_by = WrittenBy.DECODE
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=tuple(Prompt((scene.own(n, part),)) for part, n in enumerate(lengths)),
            max_new_tokens=output,
            stream=draw.chance(500),
            written_by=written_by,
            hold=hold,
        ),
    )
