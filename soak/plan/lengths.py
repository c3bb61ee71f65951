"""Lengths around the server's geometry: on a boundary, beside it, or between two.

Serving code changes its path at multiples of the chunk, the page, the state grid, the track interval and the
window; public faults sit on these, one token beside them, or exactly three (a convolution's width) away.
"""

from __future__ import annotations

from functools import lru_cache

from soak.plan.geometry import Geometry
from soak.plan.words import Draw

_OFFSETS = (0, 0, 1, -1, 3, -3)


def around(draw: Draw, geometry: Geometry, low: int, high: int) -> int:
    """A length in [low, high]: half of the draws on or near a multiple of a boundary, the rest anywhere."""
    return _around(draw, geometry.boundaries(), low, high)


@lru_cache(maxsize=4096)
def shared(  # noqa: PLR0917 - all that it depends on
    seed: int, purpose: str, key: int, boundaries: tuple[int, ...], low: int, high: int
) -> int:
    """As ``around``, of a document that several indices share: drawn once, by a stream of its own."""
    return _around(Draw(seed, purpose, key), boundaries, low, high)


def _around(draw: Draw, boundaries: tuple[int, ...], low: int, high: int) -> int:
    if high <= low:
        return low
    if boundaries and draw.chance(500):
        unit = draw.choice(boundaries)
        first, last = -(-low // unit), high // unit
        if first <= last:
            length = draw.between(first, last) * unit + draw.choice(_OFFSETS)
            return min(max(length, low), high)
    return draw.between(low, high)
