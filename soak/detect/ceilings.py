"""Bounds that need no calibration, because a fault that hits every resume spoils the controls as well.

Amnesia and the median difference right after the resume boundary, over ceilings no healthy server reaches;
the bound on max |d| which a person declared; a control floor far over the cold floor. Each counts probes
whose cold pass was repeated and stood. They never learn, and no run length is guaranteed for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from soak.oracle.amnesia import CEILING_DENOMINATOR
from soak.oracle.probe import ProbeResult

AMNESIA_CEILING = 0.25
ONSET_CEILING = 0.25
"""Nats, on the median |d| over the first 16 scored tokens."""

COLD_SHARE = 0.25
"""The second cold pass must be within this share of the bound of the first."""

HITS = 3
WINDOW = 20

FLOOR_RATIO = 30.0
COLD_FLOOR_MIN = 1e-4
"""Mean k3; a cold floor under this counts as this."""

FLOOR_CONTROLS = 8
FLOOR_COLDS = 5

AMNESIA = "ceiling-amnesia"
ONSET = "ceiling-onset"
DECLARED = "declared-bound"


def ceilings_over(result: ProbeResult) -> tuple[str, ...]:
    """The ceilings that a valid probe is over, amnesia first.

    The onset ceiling is undefined (NaN) with fewer than 16 scored tokens, amnesia under a denominator of 6.
    """
    over = []
    lost = result.amnesia
    if lost is not None and lost.clipped is not None and lost.denominator >= CEILING_DENOMINATOR:
        over += [AMNESIA] * (lost.clipped >= AMNESIA_CEILING)
    if result.divergence is not None and result.divergence.first16_median_abs >= ONSET_CEILING:
        over.append(ONSET)
    return tuple(over)


def ceiling_figure(result: ProbeResult, ceiling: str) -> float:
    """The figure which is over the ceiling: clipped amnesia, or nats."""
    if ceiling == AMNESIA and result.amnesia is not None and result.amnesia.clipped is not None:
        return result.amnesia.clipped
    return result.divergence.first16_median_abs if result.divergence is not None else math.nan


def cold_stands(result: ProbeResult, ceiling: str) -> bool:
    """Whether the second cold pass is within a quarter of the bound of the first, in the ceiling's own
    figure.

    False without a second cold pass. What the colds differ by, as amnesia, is |k1| times the tokens over the
    denominator of the probe.
    """
    repeat = result.cold_repeat
    if repeat is None:
        return False
    if ceiling == AMNESIA and result.amnesia is not None:
        apart = abs(repeat.k1) * result.amnesia.tokens / result.amnesia.denominator
        return apart <= COLD_SHARE * AMNESIA_CEILING
    return repeat.first16_median_abs <= COLD_SHARE * ONSET_CEILING


def ceiling_confirmed(result: ProbeResult, ceiling: str) -> bool | None:
    """Whether the confirming pair shows at least half of it again; None if there was no such pair.

    Half of the ceiling at the onset; for amnesia, which the pair does not measure, differences of half the
    size: a quarter of the score.
    """
    pair, first = result.confirmation, result.divergence
    if pair is None or first is None:
        return None
    if ceiling == AMNESIA:
        return pair.score >= 0.25 * first.score
    return pair.first16_median_abs >= 0.5 * ONSET_CEILING


@dataclass(frozen=True, slots=True)
class Hit:
    """A probe over a bound whose cold pass stood. shows: what the confirming pair said, None without one."""

    probe: int
    channel: str
    figure: float
    shows: bool | None
    stream: str = ""


def confirmed(hits: list[Hit]) -> bool:
    """Whether a pair showed it again, or no pair could be made and the repeated cold passes must do."""
    seen = [hit.shows for hit in hits if hit.shows is not None]
    return not seen or any(seen)


class CeilingWindow:
    """The last valid probes of one stream, and which of them were over a ceiling with a cold pass that
    stood.
    """

    def __init__(self) -> None:
        self._latest: deque[Hit | None] = deque(maxlen=WINDOW)

    def add(self, result: ProbeResult, ceilings: tuple[str, ...]) -> list[Hit]:
        """Take one valid probe and the ceilings it is over in.

        Gives the hits in the window if this probe is one of them and they are enough, else none.
        """
        hit = None
        for ceiling in ceilings:
            if cold_stands(result, ceiling):
                figure = ceiling_figure(result, ceiling)
                hit = Hit(result.number, ceiling, figure, ceiling_confirmed(result, ceiling), result.stream)
                break
        self._latest.append(hit)
        if hit is None:
            return []
        hits = [held for held in self._latest if held is not None]
        return hits if len(hits) >= HITS else []

    def state(self) -> list[list[Any] | None]:
        """Plain values for ``restored``."""
        return [None if hit is None else hit_state(hit) for hit in self._latest]

    @classmethod
    def restored(cls, state: list[list[Any] | None]) -> CeilingWindow:
        """What ``state`` gave."""
        fresh = cls()
        fresh._latest.extend(None if values is None else Hit(*values) for values in state)
        return fresh


def hit_state(hit: Hit) -> list[Any]:
    """A hit as plain values, in the order of its fields."""
    return [hit.probe, hit.channel, hit.figure, hit.shows, hit.stream]


def declared_hit(result: ProbeResult, bound: float | None) -> Hit | None:
    """The probe as a hit of the declared bound: over it in max |d|, with a second cold pass that stays
    under.
    """
    if bound is None or not over_declared(result, bound) or result.divergence is None:
        return None
    if result.cold_repeat is None or result.cold_repeat.max_abs > bound:
        return None
    shows = None if result.confirmation is None else result.confirmation.max_abs > bound
    return Hit(result.number, DECLARED, result.divergence.max_abs, shows, result.stream)


def over_declared(result: ProbeResult, bound: float | None) -> bool:
    """Whether a probe's largest |d| is over the declared bound."""
    return bound is not None and result.divergence is not None and result.divergence.max_abs > bound


def control_floor_reason(control: float | None, controls: int, cold: float | None, colds: int) -> str:
    """Why the control floor of a kind is suspicious, with figures; empty if it is not, or too few are there.

    control, cold: medians of a pass's mean k3 over ``controls`` controls and ``colds`` repeated cold passes.
    """
    if control is None or cold is None or controls < FLOOR_CONTROLS or colds < FLOOR_COLDS:
        return ""
    counted = max(cold, COLD_FLOOR_MIN)
    if control <= FLOOR_RATIO * counted:
        return ""
    return (
        f"the controls themselves are {control / counted:.3g} times as far from their cold passes (median "
        f"mean k3 {control:.3g} over {controls}) as cold passes are from each other (median {cold:.3g} over "
        f"{colds}, counted as {counted:.3g}; bound {FLOOR_RATIO:g} times): either every resume is wrong, or "
        "this server cannot resume as it recomputes"
    )


def control_onset_reason(onsets: Sequence[float]) -> str:
    """Why single controls of a kind are suspicious, with figures; empty if they are not.

    onsets: median |d| over the first 16 tokens of the latest controls, oldest first. A control is a prefix
    that soak itself wrote a moment before: a fault that spoils one state in twenty spoils one control in
    twenty, which the floor, a median, never shows and calibration would learn.
    """
    far = [onset for onset in onsets if onset >= ONSET_CEILING]
    if len(far) < HITS or len(onsets) < FLOOR_CONTROLS:  # the floor, which says more, comes first
        return ""
    return (
        f"{len(far)} of the last {len(onsets)} controls are off by a median of {ONSET_CEILING:g} nats or "
        f"more over their first 16 tokens, latest {', '.join(f'{onset:.3g}' for onset in far[-HITS:])}: some "
        "prefixes come back wrong even when nobody else had a part in writing them"
    )
