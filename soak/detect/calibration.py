"""What is normal for one resume kind, learned from its controls. It never looks at a probe.

Controls go alternately into two halves, by their order and never by their value. The first half chooses the
threshold tau, the second says how often a healthy resume exceeds it, so that the choice cannot flatter the
bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from soak.detect.binomial import clopper_pearson_upper, trials_needed
from soak.detect.mean_bound import upper_mean_bound
from soak.detect.settings import ABSOLUTE_ERROR, MAGNITUDE_ERROR

SCORE_MAX = 0.5
"""The largest score there is: half the square of a difference clipped to 1 nat, on every token."""

SCORE_FLOOR = 0.5 * 1e-4**2
"""tau is never under this: scores of a server whose controls agree to 1e-4 nats. Smaller differences are what
another order of float32 sums makes, and only exact mode speaks of them."""


@dataclass(frozen=True, slots=True)
class Look:
    """One planned look at the second half. Fixed before any control is seen, so that looks share the error.

    comparisons: size of the second half at which it happens; allowed: exceedances at which it still holds;
    tau is ``factor`` times the ``rank``-th largest control of the first half; error: its share.
    """

    comparisons: int
    allowed: int
    rank: int
    factor: float
    error: float


@cache
def plan_look(number: int, p0_max: float, error: float) -> Look:
    """The ``number``-th look, from 0.

    The first takes the largest control for tau and five eighths of the error. With two halves of one size
    the largest control of all lies in the second half every other time, so the next two looks, a few
    controls later, raise tau to two and four times the largest of the first half. A tail that is too heavy
    for that gets more controls, a quantile for tau and some exceedances allowed, with half of the error left
    each time.
    """
    if number == 0:
        factor, allowed, rank, share = 1.0, 0, 1, 0.625
    elif number <= 2:
        factor, allowed, rank, share = 2.0**number, 0, 1, 0.375 / 2**number
    else:
        allowed = 4 * 2 ** (number - 3)
        factor, rank, share = 1.0, 1 + allowed // 4, 0.375 / 2**number
    return Look(trials_needed(p0_max, error * share, allowed), allowed, rank, factor, error * share)


def controls_needed(p0_max: float, error: float = ABSOLUTE_ERROR) -> int:
    """Controls of one kind, both halves, until the first look: the fewest that can calibrate it.

    60 for a p0_max of 0.2 and 1,332 for 0.01. Half of all servers need a second look, a fifth more controls.
    """
    return 2 * plan_look(0, p0_max, error).comparisons


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is in force for a kind: a healthy probe's score exceeds tau with probability <= p0, and its score
    as a share of the largest one has a mean <= m0. controls: how many it was learned from."""

    tau: float
    p0: float
    m0: float
    controls: int


def magnitude(score: float) -> float:
    """A score as a share of the largest possible one, in [0, 1]: what the magnitude channel bets on."""
    return min(max(score / SCORE_MAX, 0.0), 1.0)


class Calibration:
    """Controls of one resume kind, pooled over shapes, until they bound what a healthy probe does.

    Once the bounds hold they stay as they are: a threshold that follows the server would follow a fault too.
    """

    def __init__(
        self, p0_max: float, error: float = ABSOLUTE_ERROR, mean_error: float = MAGNITUDE_ERROR
    ) -> None:
        self._p0_max = p0_max
        self._error = error
        self._mean_error = mean_error
        self._halves: tuple[list[float], list[float]] = ([], [])
        self._count = 0
        self._look_number = 0
        self._look = plan_look(0, p0_max, error)
        self.largest = 0.0
        self.bounds: Bounds | None = None
        self.note = ""

    @property
    def controls(self) -> int:
        """Controls seen, those after the bounds held among them."""
        return self._count

    @property
    def controls_needed(self) -> int:
        """Controls in all at which the next look happens, or at which the bounds in force were found."""
        return self.bounds.controls if self.bounds is not None else 2 * self._look.comparisons

    @property
    def controls_missing(self) -> int:
        """Controls until the next look; 0 once the bounds hold."""
        return 0 if self.bounds is not None else max(0, self.controls_needed - self._count)

    def add(self, score: float) -> bool:
        """Take one control in; True if the bounds hold from this one on and did not before."""
        self.largest = max(self.largest, score)
        if self.bounds is None:
            self._halves[self._count % 2].append(score)
        self._count += 1
        while self.bounds is None and len(self._halves[1]) >= self._look.comparisons:
            if self._take_look(self._look):
                return True
            self._look_number += 1
            self._look = plan_look(self._look_number, self._p0_max, self._error)
        return False

    def _take_look(self, look: Look) -> bool:
        first, second = (np.array(half) for half in self._halves)
        ranked = float(np.partition(first, first.size - look.rank)[first.size - look.rank])
        # A factor must not carry tau past every score there is: half way to the largest at most.
        tau = max(min(look.factor * ranked, 0.5 * (ranked + SCORE_MAX)), SCORE_FLOOR)
        exceeded = int(np.count_nonzero(second > tau))
        if exceeded > look.allowed:
            self.note = (
                f"at {self._count} controls, {exceeded} of {second.size} in the second half exceeded the "
                f"threshold {tau:.3g} of the first half ({look.allowed} allowed): more controls, threshold "
                "chosen anew"
            )
            return False
        self.bounds = Bounds(
            tau=tau,
            p0=clopper_pearson_upper(exceeded, second.size, look.error),
            m0=upper_mean_bound(np.array([magnitude(score) for score in second]), self._mean_error),
            controls=self._count,
        )
        self.note = ""
        self._halves[0].clear()
        self._halves[1].clear()
        return True

    def state(self) -> dict[str, Any]:
        """Plain values for ``restored``."""
        bounds = self.bounds
        return {
            "p0_max": self._p0_max,
            "halves": [list(half) for half in self._halves],
            "count": self._count,
            "look": self._look_number,
            "largest": self.largest,
            "bounds": None if bounds is None else [bounds.tau, bounds.p0, bounds.m0, bounds.controls],
            "note": self.note,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], p0_max: float) -> Calibration:
        """What ``state`` gave.

        Bounds stay in force for as long as p0 is at most what is now asked for. Else, and where looks were
        planned for another p0_max, calibration starts anew: a plan changed after the fact would share the
        error wrongly.
        """
        fresh = cls(p0_max)
        bounds = state["bounds"]
        if state["p0_max"] != p0_max and (bounds is None or bounds[1] > p0_max):
            fresh.note = f"p0_max was {state['p0_max']} and is now {p0_max}: calibrating anew"
            return fresh
        if bounds is not None:
            fresh.bounds = Bounds(*bounds)
        fresh._halves = (list(state["halves"][0]), list(state["halves"][1]))
        fresh._count = state["count"]
        fresh._look_number = state["look"]
        fresh._look = plan_look(fresh._look_number, p0_max, fresh._error)
        fresh.largest = state["largest"]
        fresh.note = state["note"]
        return fresh
