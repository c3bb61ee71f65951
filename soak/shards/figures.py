"""Figures of several summaries as those of one: counts add up, extremes and quantiles are the largest.

Of a quantile that is an upper bound: what all shards saw has no q-quantile over the largest of theirs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LARGEST = frozenset({"max", "median", "p50", "p90", "p99"})
_LEAST = frozenset({"min", "least"})


def added(values: Sequence[Any], key: str = "") -> Any:
    """One value of the same form. Numbers of an unknown sort are counts and add up; null says nothing.

    A mean is weighed by the counts beside it. Raises TypeError for what cannot be told together.
    """
    held = [value for value in values if value is not None]
    if not held:
        return None
    if all(isinstance(value, Mapping) for value in held):
        return _mapping(held)
    if all(isinstance(value, list) for value in held):
        return [entry for value in held for entry in value]
    if all(isinstance(value, str) for value in held):
        return held[0]
    if any(not isinstance(value, int | float) for value in held):
        raise TypeError(f"{key}: {[type(value).__name__ for value in held]} cannot be added")
    if key in _LARGEST or isinstance(held[0], bool):
        return max(held)
    return min(held) if key in _LEAST else sum(held)


def _mapping(held: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for key in dict.fromkeys(key for value in held for key in value):
        parts = [value[key] for value in held if key in value]
        if key == "mean":
            pairs = [(v["mean"], v["count"]) for v in held if v.get("mean") is not None]
            count = sum(n for _, n in pairs)
            whole[key] = sum(mean * n for mean, n in pairs) / count if count else None
        else:
            whole[key] = added(parts, key)
    return whole
