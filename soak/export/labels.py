"""Label values that stay bounded whatever a caller passes, so that one mistake cannot fill a Prometheus."""

from __future__ import annotations

OTHER = "other"


class BoundedLabel:
    """Lets the first ``limit`` distinct values through and names every later new one ``other``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value itself, or ``other`` once the limit is reached and the value is new."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value
