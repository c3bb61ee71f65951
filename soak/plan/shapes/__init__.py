"""Shapes: families of items, each made to reach one trigger. A shape is a function from draws to items."""

from soak.plan.shapes.registry import (
    DISRUPTIVE,
    MAKERS,
    SHAPES,
    Shape,
    leaves_a_victim,
    prefixes_of,
    servable,
)
from soak.plan.shapes.scene import Scene

__all__ = ["DISRUPTIVE", "MAKERS", "SHAPES", "Scene", "Shape", "leaves_a_victim", "prefixes_of", "servable"]
