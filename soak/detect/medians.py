"""The median of the latest numbers, kept up to date as they come. It never holds more than its window."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable


class LatestMedian:
    """Median of the last ``window`` numbers; adding one costs a short list insertion."""

    def __init__(self, window: int = 512, values: Iterable[float] = ()) -> None:
        self._latest: deque[float] = deque(maxlen=window)
        self._sorted: list[float] = []
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, value: float) -> None:
        """Take one number in and let the oldest go from a full window. Infinity counts as very large."""
        value = min(value, sys.float_info.max)
        if len(self._latest) == self._latest.maxlen:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(value)
        insort(self._sorted, value)

    def median(self) -> float | None:
        """The median, the mean of the middle two for an even count; None without numbers."""
        count = len(self._sorted)
        if count == 0:
            return None
        middle = count // 2
        if count % 2:
            return self._sorted[middle]
        return 0.5 * (self._sorted[middle - 1] + self._sorted[middle])

    def values(self) -> list[float]:
        """The numbers in the window, oldest first."""
        return list(self._latest)
