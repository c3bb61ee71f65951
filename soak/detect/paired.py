"""How much more often than not a probe may look worse than its control on a healthy server.

Probe and control are not exchangeable: the one was written under load, the other mostly in quiet. What that
alone does is learned from controls under load against controls in quiet, never from probes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from soak.detect.binomial import clopper_pearson_upper
from soak.detect.calibration import SCORE_FLOOR
from soak.detect.settings import PAIRED_ERROR

EXCESS_MIN = 0.1
"""delta is at least this, however even controls under load and in quiet came out."""

FIRST_LOOK = 50
"""Pairs at the first look; every further look has twice as many."""


def looks_worse(score: float, other: float) -> bool:
    """Whether one score is greater than another; ties, and both under what exact mode is for, are not."""
    return score > max(other, SCORE_FLOOR)


class PairedNull:
    """The largest healthy P(probe looks worse than its control), 1/2 + delta; None until it is known."""

    def __init__(self, error: float = PAIRED_ERROR) -> None:
        self._error = error
        self._waiting: tuple[deque[float], deque[float]] = (deque(maxlen=1000), deque(maxlen=1000))
        self._pairs = 0
        self._worse = 0
        self._look_number = 0
        self.share: float | None = None

    @property
    def missing(self) -> str:
        """What is still needed before the first look, in words; empty once the bound is known."""
        if self.share is not None:
            return ""
        quiet, loaded = (len(waiting) for waiting in self._waiting)
        return (
            f"{self._pairs} of {FIRST_LOOK} pairs of a control under load and one in quiet "
            f"({loaded} more under load, {quiet} more in quiet without a partner)"
        )

    def add(self, score: float, under_load: bool) -> None:
        """Take one control in. Each is used in one pair only, in the order they came."""
        self._waiting[under_load].append(score)
        if not (self._waiting[0] and self._waiting[1]):
            return
        quiet, loaded = self._waiting[0].popleft(), self._waiting[1].popleft()
        self._pairs += 1
        self._worse += looks_worse(loaded, quiet)
        if self._pairs == FIRST_LOOK * 2**self._look_number:
            error = self._error / 2 ** (self._look_number + 1)
            bound = max(0.5 + EXCESS_MIN, clopper_pearson_upper(self._worse, self._pairs, error))
            self.share = bound if self.share is None else min(self.share, bound)
            self._look_number += 1

    def state(self) -> list[Any]:
        """Plain values for ``restored``."""
        waiting = [list(held) for held in self._waiting]
        return [waiting, self._pairs, self._worse, self._look_number, self.share]

    @classmethod
    def restored(cls, state: list[Any]) -> PairedNull:
        """What ``state`` gave."""
        fresh = cls()
        waiting, fresh._pairs, fresh._worse, fresh._look_number, fresh.share = state
        for held, values in zip(fresh._waiting, waiting, strict=True):
            held.extend(values)
        return fresh
