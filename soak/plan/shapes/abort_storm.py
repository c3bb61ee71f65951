"""abort-storm: long prompts taken back during their prefill or while they generate, then asked again.

An abort lets go of slots that something may still write to, and leaves half a prefix in the cache (SGLang
#35049, #38319). What is asked again must be as if the first request had never been.
"""

from __future__ import annotations

from soak.plan.item import Abort, AbortBy, Item, Prompt
from soak.plan.shapes.scene import Scene

NAME = "abort-storm"
_PREFILL = (100, 500, 900)  # shares of the prefill, in thousandths


def make(scene: Scene) -> tuple[Item, ...]:
    """Step 0 is taken back at 10, 50 or 90% of its prefill or in mid-decode; step 1 asks the same again."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    output = draw.between(8, max(8, min(spec.max_new_tokens, room // 4)))
    again = scene.output(draw, room // 16)
    tail = draw.between(1, 8)
    most = max(1, room - max(output, tail + again))
    length = min(spec.geometry.chunk * draw.between(12, 37) // 10 + draw.between(0, 7), most)
    by = AbortBy.DISCONNECT if draw.chance(500) else AbortBy.REQUEST
    if draw.chance(600):
        abort = Abort(by, prefill_per_mille=draw.choice(_PREFILL))
    else:
        abort = Abort(by, after_tokens=draw.between(1, max(1, output // 2)))
    prompt = scene.own(length)
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=(Prompt((prompt,)),),
            max_new_tokens=output,
            abort=abort,
        ),
        Item(
            index=scene.index,
            step=1,
            shape=NAME,
            at_us=scene.at_us,
            prompts=(Prompt((prompt, scene.own(tail, 1))),),
            max_new_tokens=again,
            delay_us=draw.between(0, 300_000),
        ),
    )
