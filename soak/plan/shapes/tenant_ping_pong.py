"""tenant-ping-pong: the same documents asked by turns in several cache namespaces (``extra_key``).

What one tenant left must never be served to another: a namespace that leaks shows as a hit where there can be
none, or as another tenant's state behind one's own tokens (SGLang #24638).
"""

from __future__ import annotations

from dataclasses import replace

from soak.plan.item import Item
from soak.plan.shapes.asked_document import asked_document
from soak.plan.shapes.scene import Scene

NAME = "tenant-ping-pong"
_WINDOW = 24  # indices that share a document


def make(scene: Scene) -> tuple[Item, ...]:
    """A document of the window and a tail of its own, in the namespace of a drawn tenant."""
    item, draw = asked_document(scene, NAME, "tenant-document", _WINDOW)
    return (replace(item, tenant=draw.below(scene.spec.tenants)),)
