"""tenant-ping-pong: the same documents asked by turns in several cache namespaces (``extra_key``).

What one tenant left must never be served to another: a namespace that leaks shows as a hit where there can be
none, or as another tenant's state behind one's own tokens (SGLang #24638).
"""

from __future__ import annotations

from dataclasses import replace

from soak.plan.item import Item, Prompt, Segment
from soak.plan.lengths import around
from soak.plan.shapes.scene import Scene

NAME = "tenant-ping-pong"
_WINDOW = 24  # indices that share a document


def make(scene: Scene) -> tuple[Item, ...]:
    """A document of the window and a tail of its own, in the namespace of a drawn tenant."""
    spec, draw, room = scene.spec, scene.draw(NAME), scene.room
    key = scene.index // _WINDOW
    of_document = scene.shared_draw("tenant-document", key)
    output = scene.output(draw, room // 16)
    tail = draw.between(1, max(1, room // 32))
    most = max(1, room - output - tail)
    length = min(around(of_document, spec.geometry, spec.min_prompt, max(spec.min_prompt, room // 2)), most)
    prompt = Prompt((Segment("tenant-document", key, 0, length), scene.own(tail)))
    return (replace(scene.single(NAME, draw, prompt, output), tenant=draw.below(spec.tenants)),)
