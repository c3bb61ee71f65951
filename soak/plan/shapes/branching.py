"""branching: conversations that part from a common trunk on, beside and between the places states are kept.

A prompt that parts from an earlier one off the checkpoint grid (SGLang #38815), that adds one to three tokens
to a cached prefix (vLLM #56196), or whose length is one more than a multiple of the grid, takes paths that
prompts of drawn lengths hardly ever take.
"""

from __future__ import annotations

from soak.plan.item import Item, Prompt, Segment
from soak.plan.shapes.scene import Scene

NAME = "branching"
_WINDOW = 24  # indices that share a trunk
_OFFSETS = (0, 1, -1, 3, -3, 32, -32)


def make(scene: Scene) -> tuple[Item, ...]:
    """A trunk cut near a multiple of a boundary, a branch of its own, then a turn of one to three tokens."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    boundaries = spec.geometry.boundaries() or (64,)
    turn = draw.between(1, 3)
    output = scene.output(draw, room // 16)
    answer = scene.output(draw, room // 16)
    most = max(2, room - output - answer - turn)  # trunk and branch
    unit = draw.choice([b for b in boundaries if b < most] or [1])
    cut = unit * draw.between(1, max(1, most * 3 // 4 // unit)) + draw.choice(_OFFSETS)
    cut = min(max(cut, 1), most - 1)
    branch = draw.between(1, 3) if draw.chance(500) else draw.between(1, max(1, most // 8))
    branch = min(branch, most - cut)
    grid = spec.geometry.state_grid or spec.geometry.page
    if draw.chance(333):  # a total of one more than a multiple of the grid
        branch = min(branch + (1 - cut - branch) % grid, most - cut)
    trunk = Segment("branching-trunk", scene.index // _WINDOW, 0, cut)
    first = scene.single(NAME, draw, Prompt((trunk, scene.own(branch))), output)
    second = Item(
        index=scene.index,
        step=1,
        shape=NAME,
        at_us=scene.at_us,
        parent=0,
        delay_us=draw.between(0, 2_000_000),
        prompts=(Prompt((scene.own(turn, 1),)),),
        max_new_tokens=answer,
    )
    return (first, second)
