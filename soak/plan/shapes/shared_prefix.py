"""shared-prefix: a Zipf-popular tree of prefixes, whose popularity drifts so that old prefixes exist too."""

from __future__ import annotations

from functools import lru_cache

from soak.plan.item import Item, Prompt, Segment
from soak.plan.shapes.scene import Scene

NAME = "shared-prefix"
_BRANCHES = 4


@lru_cache(maxsize=16)
def _zipf(roots: int) -> tuple[int, ...]:
    return tuple((1 << 20) // (k + 1) for k in range(roots))


def make(scene: Scene) -> tuple[Item, ...]:
    """Root document (rank drawn by Zipf's law, exponent 1), one of four branches, a tail of its own."""
    spec, draw = scene.spec, scene.draw(NAME)
    room = scene.room
    rank = draw.weighted(_zipf(spec.roots))
    # rank 0 is the newest root; every zipf_churn indices a new one takes that place
    root = scene.index // spec.zipf_churn + spec.roots - 1 - rank
    least = spec.min_prompt
    root_length = scene.shared_length("shared-prefix-root", root, least, max(least, room // 2))
    branch = root * _BRANCHES + draw.below(_BRANCHES)
    branch_length = scene.shared_length("shared-prefix-branch", branch, 8, max(8, room // 6))
    tail = draw.between(1, max(1, min(spec.min_prompt, room // 8)))
    output = scene.output(draw, room // 16)
    prompt = Prompt(
        (
            Segment("shared-root", root, 0, root_length),
            Segment("shared-branch", branch, 0, branch_length),
            scene.own(tail),
        )
    )
    return (scene.single(NAME, draw, prompt, output),)
