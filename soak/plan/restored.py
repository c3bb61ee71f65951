"""A resolved spec from the plain values that were written into a run, its journal or its bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from soak.plan.geometry import Geometry
from soak.plan.shapes import MAKERS
from soak.plan.spec import PLAN_VERSION, Adaptive, ResolvedSpec


def spec_of(values: Mapping[str, Any]) -> ResolvedSpec:
    """The spec that ``as_dict`` gave these values, whatever became of the order of their keys.

    Raises ValueError in words for values that this soak cannot plan by.
    """
    version = values.get("plan_version")
    if version != PLAN_VERSION:
        raise ValueError(f"plan_version {version}: this soak plans by version {PLAN_VERSION}")
    given = {name: value for name, value in values.items() if name != "plan_version"}
    try:
        weights = {str(name): int(weight) for name, weight in given.pop("weights").items()}
        unknown = sorted(weights.keys() - MAKERS.keys())
        if unknown:
            raise ValueError(f"weights: no such shape {unknown[0]}")
        adaptive = given.pop("adaptive", None)
        geometry = dict(given.pop("geometry"))
        geometry["adapters"] = tuple(geometry.get("adapters", ()))
        geometry["pieces"] = tuple(tuple(piece) for piece in geometry.get("pieces", ()))
        geometry["facts"] = tuple(tuple(map(tuple, fact)) for fact in geometry.get("facts", ()))
        return ResolvedSpec(
            adaptive=None if adaptive is None else Adaptive(**adaptive),
            geometry=Geometry(**geometry),
            # a draw goes by the order of the shapes, and JSON promises none
            weights=tuple((name, weights[name]) for name in MAKERS if name in weights),
            **given,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not the values of a resolved spec ({error})") from error
