"""Recall of needles by depth and length: a table for the summary and for people. Bounded; adds only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.oracle.recall import Recall, Recalled


@dataclass(slots=True)
class _Cell:
    asked: int = 0
    cold_exact: int = 0
    cold_likely: int = 0
    warm_exact: int = 0
    warm_likely: int = 0
    forgotten: int = 0
    cold_nats: float = 0.0
    warm_nats: float = 0.0


class NeedleTally:
    """One cell per depth and power of two of the document's length."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], _Cell] = {}

    def add(self, needle: Recall) -> None:
        """One needle, asked for both ways."""
        length = 1 << max(6, (needle.length - 1).bit_length())
        cell = self._cells.setdefault((needle.depth, length), _Cell())
        cell.asked += 1
        cell.cold_exact += needle.cold.exact
        cell.warm_exact += needle.warm.exact
        cell.cold_likely += needle.cold.by_logprob
        cell.warm_likely += needle.warm.by_logprob
        cell.forgotten += needle.forgotten
        cell.cold_nats += needle.cold.logprob
        cell.warm_nats += needle.warm.logprob

    def rows(self) -> list[dict[str, Any]]:
        """Cells by depth and length. up_to: tokens; exact, likely: how many were recalled so; logprob: mean
        nats a token of the answer; forgotten: recalled cold and not from the cache.
        """
        return [
            {
                "depth": depth,
                "up_to": length,
                "asked": cell.asked,
                "cold": {
                    "exact": cell.cold_exact,
                    "likely": cell.cold_likely,
                    "logprob": cell.cold_nats / cell.asked,
                },
                "cached": {
                    "exact": cell.warm_exact,
                    "likely": cell.warm_likely,
                    "logprob": cell.warm_nats / cell.asked,
                },
                "forgotten": cell.forgotten,
            }
            for (depth, length), cell in sorted(self._cells.items())
        ]


def grade(side: Recalled) -> str:
    """One word for one side: exact, likely or lost."""
    if side.exact:
        return "exact"
    return "likely" if side.by_logprob else "lost"


def needle_table(summary: Mapping[str, Any]) -> tuple[str, list[tuple[str, ...]]] | None:
    """A title and the depth by length table, cold / cached; None where no needle was asked for."""
    cells = {(row["depth"], row["up_to"]): row for row in summary.get("needles", [])}
    if not cells:
        return None
    lengths = sorted({length for _, length in cells})
    rows: list[tuple[str, ...]] = [("needle at", *(f"to {length:,}" for length in lengths))]
    for depth in sorted({depth for depth, _ in cells}):
        shown = [_cell(cells.get((depth, length))) for length in lengths]
        rows.append((f"{depth}%", *shown))
    lost = sum(row["forgotten"] for row in cells.values())
    title = (
        "Needles recalled word for word, cold / cached of asked (mean nats a token, cold / cached); "
        f"recalled cold and forgotten by the cache: {lost}"
    )
    return title, rows


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    cold, cached = row["cold"], row["cached"]
    return (
        f"{cold['exact']} / {cached['exact']} of {row['asked']} "
        f"({cold['logprob']:.2f} / {cached['logprob']:.2f})"
    )
