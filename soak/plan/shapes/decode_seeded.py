"""decode-seeded: generate far enough that decode leaves states behind, then continue from prompt + output.

Decode writes states at multiples of the track interval (SGLang #32555 saved them through a stale buffer), so
the generation passes the interval twice where the server names one and the room allows it. A third of them
end on such a multiple or one token beside it, where bookkeeping that is one ahead (SGLang #29792) shows.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, WrittenBy
from soak.plan.lengths import around
from soak.plan.shapes.scene import Scene

NAME = "decode-seeded"


def make(scene: Scene) -> tuple[Item, ...]:
    """Step 0 generates, step 1 continues the conversation after a short pause."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    interval = spec.geometry.track_interval or spec.decode_tokens // 2
    wanted = min(2 * interval + draw.between(1, max(1, interval // 2)), spec.decode_tokens)
    generated = max(4, min(wanted, room // 2))
    tail = draw.between(1, max(1, min(24, room // 16)))
    answer = scene.output(draw, room // 16)
    most = max(spec.min_prompt, min(room - generated - tail - answer, room // 3))
    length = around(draw, spec.geometry, min(spec.min_prompt, most), most)
    end = scene.draw("decode-seeded-end")
    if spec.geometry.track_interval is not None and end.chance(333):
        longest = min(spec.decode_tokens, room // 2, room - length - tail - answer)
        generated = _ending_near(length, generated, interval, end.between(-1, 1), longest)
    first = Item(
        index=scene.index,
        step=0,
        shape=NAME,
        at_us=scene.at_us,
        prompts=(Prompt((scene.own(length),)),),
        max_new_tokens=generated,
        temperature_milli=1000 if draw.chance(500) else 0,
        return_logprob=scene.served(draw),
        written_by=WrittenBy.DECODE,
    )
    second = Item(
        index=scene.index,
        step=1,
        shape=NAME,
        at_us=scene.at_us,
        parent=0,
        delay_us=draw.between(0, 500_000),
        prompts=(Prompt((scene.own(tail, 1),)),),
        max_new_tokens=answer,
    )
    return (first, second)


def _ending_near(length: int, generated: int, interval: int, beside: int, most: int) -> int:
    """The most tokens, up to ``most``, that end so far beside a multiple of the interval.

    What can pass the interval twice still does; ``generated`` where that cannot be had.
    """
    most = min(most, 3 * interval)
    least = 2 * interval + 1 if most > 2 * interval else 4
    found = (length + most - beside) // interval * interval + beside - length
    return found if found >= least else generated
