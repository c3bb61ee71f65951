"""The figures of ``soak bench flat`` as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from soak.bench.flat.measuring import Flatness
from soak.bench.load.figures import table


def markdown(seen: Sequence[Flatness]) -> str:
    """A row a part."""
    columns = ("part", "after", "CPU us each", "after", "CPU us each", "ratio of turns", "RSS, MiB", "ratio")
    rows = [
        (
            f"{one.part}, by {one.unit}",
            f"{one.few:,}",
            f"{one.few_us:.0f}",
            f"{one.many:,}",
            f"{one.many_us:.0f}",
            f"{one.time_ratio:.2f}",
            f"{one.few_bytes / 2**20:.0f} -> {one.many_bytes / 2**20:.0f}",
            f"{one.memory_ratio:.2f}",
        )
        for one in seen
    ]
    return table(columns, rows)


def grown(seen: Sequence[Flatness]) -> list[str]:
    """What is not flat, in words."""
    return [
        f"{one.part}: {one.time_ratio:.2f} times the time and {one.memory_ratio:.2f} times the memory after "
        f"{one.many:,} {one.unit}s than after {one.few:,}"
        for one in seen
        if not one.flat
    ]
