"""All that is known of one resume kind: its controls, its bounds, and probes that wait for them."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from soak.detect.calibration import SCORE_FLOOR, Calibration
from soak.detect.evidence import Sighting
from soak.detect.medians import LatestMedian
from soak.detect.paired import PairedNull
from soak.oracle.divergence import Divergence

WAITING_MAX = 20_000
"""Probes kept for the time their kind is calibrating; the oldest go first, and are counted."""

ONSETS_KEPT = 60
"""Controls whose median |d| over their first tokens is remembered."""

EARLY_CONTROLS = 10
EARLY_PAIRS = 3
"""While calibrating, with so many controls, a probe over twice the largest of them is worth a confirming
pair, until its stream has so many.
"""


class KindBook:
    """The record of one resume kind. It raises no alarm and knows no other kind."""

    def __init__(self, p0_max: float) -> None:
        self.calibration = Calibration(p0_max)
        self.paired = PairedNull()
        self.control_scores = LatestMedian()
        self.control_k3 = LatestMedian()
        self.onsets: deque[float] = deque(maxlen=ONSETS_KEPT)  # of controls' first tokens
        self.waiting: deque[Sighting] = deque(maxlen=WAITING_MAX)
        self.dropped = 0
        self.probes = 0
        self.refused = 0
        self.refusal = ""

    def add_control(self, control: Divergence, under_load: bool) -> bool:
        """Take one control in; True if the kind's bounds hold from now on and did not before."""
        self.control_scores.add(control.score)
        self.control_k3.add(control.k3)
        if math.isfinite(control.first16_median_abs):
            self.onsets.append(control.first16_median_abs)
        self.paired.add(control.score, under_load)
        return self.calibration.add(control.score)

    def refuse_control(self, why: str) -> None:
        """A wanted control that could not be made."""
        self.refused += 1
        self.refusal = why

    def wait(self, sighting: Sighting) -> None:
        """Keep a probe until the bounds hold."""
        self.dropped += len(self.waiting) == WAITING_MAX
        self.waiting.append(sighting)

    def wants_early_pair(self, stream: str, score: float) -> bool:
        """Whether a probe stands out of the controls so far, and its stream lacks confirming pairs."""
        stands_out = score > max(2.0 * self.calibration.largest, SCORE_FLOOR)
        if not stands_out or self.calibration.controls < EARLY_CONTROLS:
            return False
        made = sum(1 for held in self.waiting if held.stream == stream and held.pair_score is not None)
        return made < EARLY_PAIRS

    def recalibrate(self, p0_max: float, why: str) -> None:
        """Forget controls, bounds and waiting probes: they were of a server that behaved otherwise."""
        self.calibration = Calibration(p0_max)
        self.calibration.note = why
        self.waiting.clear()

    def state(self) -> dict[str, Any]:
        """Plain values for ``restored``."""
        return {
            "calibration": self.calibration.state(),
            "paired": self.paired.state(),
            "control_scores": self.control_scores.values(),
            "control_k3": self.control_k3.values(),
            "onsets": list(self.onsets),
            "waiting": [[s.number, s.stream, s.score, s.pair_score, s.cold_score] for s in self.waiting],
            "counts": [self.dropped, self.probes, self.refused],
            "refusal": self.refusal,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], p0_max: float) -> KindBook:
        """What ``state`` gave."""
        fresh = cls(p0_max)
        fresh.calibration = Calibration.restored(state["calibration"], p0_max)
        fresh.paired = PairedNull.restored(state["paired"])
        fresh.control_scores = LatestMedian(values=state["control_scores"])
        fresh.control_k3 = LatestMedian(values=state["control_k3"])
        fresh.onsets.extend(state.get("onsets", ()))
        fresh.waiting.extend(Sighting(*held) for held in state["waiting"])
        fresh.dropped, fresh.probes, fresh.refused = state["counts"]
        fresh.refusal = state["refusal"]
        return fresh
