"""A quantile sketch of bounded memory: counts in buckets whose edges grow by a constant factor.

For run summaries over any length of run: it never keeps a value, only counts, and two sketches of the same
layout add up to the sketch of both streams. It must never be fed NaN: a NaN has no rank.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST = sys.float_info.max
"""Infinity is counted as this value, so that extremes stay numbers in JSON."""


_FEW = 24  # values of a list; fewer are counted sooner one by one than as an array


class LogSketch:
    """Quantiles within ``relative_error`` of the exact order statistic, for values in [lowest, highest].

    With gamma = (1 + e) / (1 - e), bucket i holds (lowest * gamma^(i-1), lowest * gamma^i] and answers
    2 * lowest * gamma^i / (gamma + 1), which is within e of everything in it (the bucket rule of DDSketch,
    Masson, Rim and Lee, VLDB 2019). Values under ``lowest`` count as 0, an absolute error under ``lowest``;
    values over ``highest`` share the last bucket. Least and greatest value are kept exactly. ``signed``
    mirrors the buckets for negative values; without it a negative value raises ValueError.
    """

    def __init__(
        self, lowest: float, highest: float, *, relative_error: float = 0.01, signed: bool = False
    ) -> None:
        if not (0.0 < lowest < highest < math.inf and 0.0 < relative_error < 1.0):
            raise ValueError(f"no sketch of [{lowest}, {highest}] within {relative_error}")
        self.lowest, self.highest = lowest, highest
        self.relative_error, self.signed = relative_error, signed
        self._log_gamma = math.log1p(relative_error) - math.log1p(-relative_error)
        self._log_lowest = math.log(lowest)
        side = 1 + math.ceil(math.log(highest / lowest) / self._log_gamma)
        self._zero = side if signed else 0
        self._counts: npt.NDArray[np.int64] = np.zeros(self._zero + 1 + side, dtype=np.int64)
        self.count = 0
        self.total = 0.0
        self.least, self.greatest = math.inf, -math.inf

    def _place(self, size: float) -> int:
        """Distance from the zero bucket of a value of this size, 0 for sizes under ``lowest``."""
        if size < self.lowest:
            return 0
        place = 1 + math.ceil((math.log(size) - self._log_lowest) / self._log_gamma)
        return min(place, self._counts.size - 1 - self._zero)

    def add(self, value: float) -> None:
        """Count one value. Raises ValueError for NaN, and for negative values unless signed."""
        if not (value >= 0.0 or (value < 0.0 and self.signed)):
            raise ValueError(f"{value} cannot be counted")
        self._count(value)

    def _count(self, value: float) -> None:
        if not -LARGEST <= value <= LARGEST:
            value = math.copysign(LARGEST, value)
        place = self._place(abs(value))
        self._counts[self._zero + (place if value >= 0.0 else -place)] += 1
        self.count += 1
        total = self.total + value
        self.total = total if -LARGEST <= total <= LARGEST else math.copysign(LARGEST, total)
        self.least = min(self.least, value)
        self.greatest = max(self.greatest, value)

    def add_many(self, values: npt.NDArray[np.float64] | list[float]) -> None:
        """Count every entry of an array of any shape, or of a list; the rules of ``add``, all or nothing."""
        if isinstance(values, list) and len(values) < _FEW:
            if not all(value >= 0.0 or (value < 0.0 and self.signed) for value in values):
                raise ValueError("an entry cannot be counted")
            for value in values:
                self._count(value)
            return
        flat = np.clip(np.asarray(values, dtype=np.float64).ravel(), -LARGEST, LARGEST)
        if flat.size == 0:
            return
        if np.isnan(flat).any() or (not self.signed and (flat < 0.0).any()):
            raise ValueError("an entry cannot be counted")
        size = np.abs(flat)
        seen = size >= self.lowest
        place = np.zeros(flat.size, dtype=np.int64)
        place[seen] = 1 + np.ceil((np.log(size[seen]) - self._log_lowest) / self._log_gamma)
        np.minimum(place, self._counts.size - 1 - self._zero, out=place)
        np.add.at(self._counts, self._zero + np.where(flat >= 0.0, place, -place), 1)
        self.count += int(flat.size)
        with np.errstate(over="ignore"):
            self.total = min(max(self.total + float(flat.sum()), -LARGEST), LARGEST)
        self.least, self.greatest = min(self.least, float(flat.min())), max(self.greatest, float(flat.max()))

    def quantile(self, q: float) -> float:
        """The value of rank max(1, ceil(q * count)), 0 <= q <= 1; NaN when nothing was counted."""
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"{q} is not a quantile between 0 and 1")
        if self.count == 0:
            return math.nan
        rank = max(1, math.ceil(q * self.count))
        if rank == self.count:
            return self.greatest
        place = int(np.searchsorted(np.cumsum(self._counts), rank)) - self._zero
        size = 0.0
        if place:
            exponent = self._log_lowest + (abs(place) - 1) * self._log_gamma
            size = 2.0 * math.exp(exponent) / (math.exp(self._log_gamma) + 1.0)
        return min(max(math.copysign(size, place), self.least), self.greatest)

    def merge(self, other: LogSketch) -> None:
        """Add another sketch's counts. Raises ValueError unless both have the same layout."""
        if self._layout() != other._layout():
            raise ValueError(f"sketches of different layouts: {self._layout()} and {other._layout()}")
        self._counts += other._counts
        self.count += other.count
        self.total = min(max(self.total + other.total, -LARGEST), LARGEST)
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)

    def figures(self) -> dict[str, float | int | None]:
        """count, mean, p50, p90, p99, max for a summary; None for all but count when nothing was counted."""
        if self.count == 0:
            return {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None, "max": None}
        return {
            "count": self.count,
            "mean": self.total / self.count,
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
            "max": self.greatest,
        }

    def _layout(self) -> tuple[float, float, float, bool]:
        return self.lowest, self.highest, self.relative_error, self.signed

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; only buckets that hold something, as [index, count]."""
        used = np.flatnonzero(self._counts)
        return {
            "lowest": self.lowest,
            "highest": self.highest,
            "relative_error": self.relative_error,
            "signed": self.signed,
            "total": self.total,
            "least": self.least if self.count else None,
            "greatest": self.greatest if self.count else None,
            "buckets": [[int(i), int(self._counts[i])] for i in used],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LogSketch:
        """What ``as_dict`` wrote. Raises ValueError, TypeError or KeyError for anything else."""
        sketch = cls(
            float(data["lowest"]),
            float(data["highest"]),
            relative_error=float(data["relative_error"]),
            signed=bool(data["signed"]),
        )
        for index, count in data["buckets"]:
            if not (0 <= index < sketch._counts.size and count > 0):
                raise ValueError(f"bucket {index} with count {count} does not fit this layout")
            sketch._counts[index] = count
        sketch.count = int(sketch._counts.sum())
        sketch.total = float(data["total"])
        if sketch.count:
            sketch.least, sketch.greatest = float(data["least"]), float(data["greatest"])
        return sketch


def seconds_sketch() -> LogSketch:
    """For durations: one microsecond to about a day, 1%."""
    return LogSketch(1e-6, 1e5)


def nats_sketch() -> LogSketch:
    """For non-negative divergence figures: k3 of one fp32 rounding in a thousand tokens is about 1e-17."""
    return LogSketch(1e-18, 1e4)


def ratio_sketch() -> LogSketch:
    """For amnesia ratios, which may be negative or above 1."""
    return LogSketch(1e-4, 1e3, signed=True)
