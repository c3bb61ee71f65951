"""Delta debugging: fewer parts, or a smaller number, that still do it. Pure: yields what to try, is told.

Generators: each yielded candidate is answered with whether it still does it; what returns is the smallest
that did. After Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), complements
only: a subset that does it alone is found by a growing window before (``growing``), which is cheaper where
the parts that matter lie close together.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")

Trial = Generator[tuple[T, ...], bool, tuple[T, ...]]


def fewer(parts: Sequence[T]) -> Trial[T]:
    """A subsequence from which no single part can be taken away; the parts at the end go first."""
    kept = tuple(parts)
    size = max(1, len(kept) // 2)
    while kept:
        at, shrunk = len(kept), False
        while at > 0:
            start = max(0, at - size)
            candidate = kept[:start] + kept[at:]
            if (yield candidate):
                kept, shrunk = candidate, True
            at = start
        if size == 1 and not shrunk:
            break
        size = size if size == 1 else max(1, size // 2)
    return kept


def growing(parts: Sequence[T], near: Sequence[int]) -> Trial[T]:
    """The smallest window, doubling from nothing, around the places ``near`` in parts that does it; else all.

    A place may be len(parts), the end. Windows of more than half of all are not tried: ``fewer`` is better.
    """
    width = 0
    while True:
        places = {p for place in near for p in range(place - width, place + width)}
        candidate = tuple(part for place, part in enumerate(parts) if place in places)
        if 2 * len(candidate) > len(parts):
            return tuple(parts)
        if (yield candidate):
            return candidate
        width = 2 * width if width else 1


def least(low: int, high: int, coarse: int = 0) -> Generator[int, bool, int]:
    """The smallest number in [low, high] that does it, by bisection, as far as they are in order.

    high is taken to do it. coarse: stop when as near as 1/coarse of the number; 0: to the end.
    """
    if low >= high:
        return high
    if (yield low):
        return low
    failed, works = low, high
    while works - failed > 1 and not (coarse and (works - failed) * coarse <= works):
        middle = (failed + works) // 2
        if (yield middle):
            works = middle
        else:
            failed = middle
    return works
