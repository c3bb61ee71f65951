"""A spec written down and read again plans the same, whatever JSON did to the order of its keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.plan.restored import spec_of
from soak.plan.shapes import SHAPES
from soak.plan.spec import ResolvedSpec

SPEC = ResolvedSpec(
    geometry=Geometry(chunk=128, hybrid=True, strategy="extra_buffer", track_interval=64),
    weights=tuple((name, weight) for weight, name in enumerate(SHAPES, start=1)),
)


def test_it_is_the_spec_again() -> None:
    again = spec_of(json.loads(json.dumps(SPEC.as_dict(), sort_keys=True)))
    assert again == SPEC
    assert again.digest() == SPEC.digest()
    assert [Plan(7, again).items(i) for i in range(50)] == [Plan(7, SPEC).items(i) for i in range(50)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan_version": 99}, "plan_version 99: this soak plans by version"),
        ({"weights": {"teapot": 1}}, "no such shape teapot"),
        ({"weights": None}, "not the values of a resolved spec"),
        ({"geometry": {"colour": 1}}, "colour"),
        ({"speed": 3}, "speed"),
    ],
)
def test_other_values_are_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_of(SPEC.as_dict() | change)
