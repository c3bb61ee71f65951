"""planted: what a run without load of its own leaves on a server that others use, to ask about it later.

Never chosen by weight: it is all there is where the config says ``load: none``. Few and small: two thirds are
written by prefill, every other one of them parting from an earlier one; the rest by decode.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment, WrittenBy
from soak.plan.lengths import around
from soak.plan.shapes.scene import Scene

NAME = "planted"
_WINDOW = 12  # indices that share a trunk


def make(scene: Scene) -> tuple[Item, ...]:
    """One prompt, written by prefill or by decode."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    decoded = draw.chance(333)
    if decoded:
        interval = spec.geometry.track_interval or spec.decode_tokens // 2
        wanted = min(2 * interval + draw.between(1, max(1, interval // 2)), spec.decode_tokens)
        output = max(4, min(wanted, room // 2))
    else:
        output = draw.between(1, 4)
    most = max(1, room - output)
    length = min(around(draw, spec.geometry, min(spec.min_prompt, most), most), most)
    segments: tuple[Segment, ...] = (scene.own(length),)
    if not decoded and draw.chance(500):
        own = min(draw.between(1, max(1, length // 2)), length - 1)
        if own:
            trunk = Segment("planted-trunk", scene.index // _WINDOW, 0, length - own)
            segments = (trunk, scene.own(own))
    return (
        Item(
            index=scene.index,
            step=0,
            shape=NAME,
            at_us=scene.at_us,
            prompts=(Prompt(segments),),
            max_new_tokens=output,
            stream=draw.chance(500),
            written_by=WrittenBy.DECODE if decoded else WrittenBy.PREFILL,
        ),
    )
