"""abort-load: a document is pushed to host memory, asked for again behind others, and taken back as it loads.

The others then need the slots that a transfer may still write to (SGLang #35049); they are the victims.
Disruptive: it fills the pool twice. A server without a host tier is not asked.
"""

from __future__ import annotations

from soak.plan.item import Abort, AbortBy, Item, Prompt
from soak.plan.shapes.pool import prompts_to_fill
from soak.plan.shapes.scene import Scene

NAME = "abort-load"
_PREFILL = (50, 100, 300)  # shares of the document's own prefill, in thousandths


def make(scene: Scene) -> tuple[Item, ...]:
    """Step 0 caches a document, step 1 fills the pool, step 2 fills it again and takes the document back."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    tail = draw.between(1, 8)
    most = max(1, room - tail - 4)
    document = scene.own(min(draw.between(max(1, room * 2 // 3), room), most))
    filler = max(1, room - 4)
    width = max(1, min(prompts_to_fill(spec, filler, 11), spec.pressure - 1))

    def fillers(first: int) -> tuple[Prompt, ...]:
        return tuple(Prompt((scene.own(filler, first + part),)) for part in range(width))

    def item(step: int, prompts: tuple[Prompt, ...], abort: Abort | None = None, delay_us: int = 0) -> Item:
        return Item(
            index=scene.index,
            step=step,
            shape=NAME,
            at_us=scene.at_us,
            prompts=prompts,
            max_new_tokens=1,
            delay_us=delay_us,
            stream=False,
            abort=abort,
        )

    by = AbortBy.DISCONNECT if draw.chance(300) else AbortBy.REQUEST
    abort = Abort(by, prefill_per_mille=draw.choice(_PREFILL), part=width)
    return (
        item(0, (Prompt((document,)),)),
        item(1, fillers(2)),
        item(
            2, (*fillers(2 + width), Prompt((document, scene.own(tail, 1)))), abort, draw.between(0, 50_000)
        ),
    )
