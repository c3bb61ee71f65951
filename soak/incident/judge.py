"""Is it the same wrong answer again? Pure: the figures of an incident and of its replays in, words out.

A divergence counts as reproduced if it stands clear of the noise that the replay itself measured on this
server and is not much smaller than the original's:

    score(warm - cold) > 10 x floor   and   score(warm - cold) >= 1/10 x score of the original

score is the mean of min(|d|, 1 nat)^2 / 2 (``discrepancy_score``), so in nats both factors are 3.2. Where the
floor is zero to the last bit, a hundredth of the original's score is enough: there any difference is real.
The floor is the largest score among all repeated cold passes and all controls of the replay. Healthy resumes
are about twice as noisy as cold passes, up to four times in score; ten leaves room where no control can be
made.

A control that is itself off by more than 30 times the cold floor (which counts as at least 1e-4, the bound of
the detectors) is no measure of noise: then every resume of that kind is wrong, and only cold passes count.
Where two cold passes of the original already disagreed as much as warm and cold did, that is the complaint,
and a replay has it again where its own cold passes disagree by a tenth of it and by at least 1e-3, which is
several times what bf16 servers show.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from soak.incident.trace import Case
from soak.oracle.divergence import Divergence, discrepancy_score, diverge
from soak.oracle.probe import ProbeOutcome

CLEAR_OF_NOISE = 10.0
SHARE_OF_ORIGINAL = 0.1
SHARE_IF_EXACT = 0.01
CONTROL_OFF = 30.0
COLD_FLOOR = 1e-4
UNSTEADY_FLOOR = 1e-3
_AS_UNSTEADY = 0.25  # of the original's warm score: from here on its cold passes are the complaint


class Reading(enum.StrEnum):
    """What one replay came to. NO_ANSWER: the question could not be asked; it counts neither way."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Measured:
    """One replay's passes. warm: each warm pass against its cold pass; cold: repeated cold against first.

    boundary: where the warm passes resumed. hard: the hard alarm that was met, with detail its words; any of
    load's counts where the original was one. note: why there is no answer, or what is missing beside it.
    """

    boundary: int = 0
    warm: tuple[Divergence, ...] = ()
    cold: tuple[Divergence, ...] = ()
    control: Divergence | None = None
    hard: ProbeOutcome | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Original:
    """The figures of the incident. score: warm against cold; cold: of its repeated cold pass, None without.

    hard: the kind of a hard alarm, None for a divergence.
    """

    score: float
    max_abs: float
    cold: float | None = None
    hard: ProbeOutcome | None = None

    @property
    def unsteady(self) -> bool:
        """Whether cold passes of the same ids disagreed about as much as warm and cold."""
        return self.cold is not None and self.score > 0 and self.cold >= _AS_UNSTEADY * self.score


@dataclass(frozen=True, slots=True)
class Judged:
    """One replay judged. score, max_abs: of its larger warm pass; floor: the noise it was held against."""

    reading: Reading
    score: float
    max_abs: float
    onset: int
    floor: float
    words: str


def original_of(case: Case) -> Original:
    """The figures of a case, from its own passes."""
    if case.outcome.hard_alarm:
        return Original(0.0, 0.0, hard=case.outcome)
    d = diverge(case.warm, case.cold)
    again = None if case.cold_again is None else discrepancy_score(case.cold_again - case.cold)
    return Original(d.score, d.max_abs, again)


def floor_of(measured: Sequence[Measured]) -> tuple[float, bool]:
    """(the largest score of noise in these replays, whether a control was too far off to be noise)."""
    cold = max((d.score for m in measured for d in m.cold), default=0.0)
    bound = CONTROL_OFF * max(cold, COLD_FLOOR)
    controls = [m.control.score for m in measured if m.control is not None]
    return max([cold, *(score for score in controls if score <= bound)]), any(s > bound for s in controls)


def judge(original: Original, measured: Sequence[Measured]) -> tuple[Judged, ...]:
    """Every replay judged by the noise of all of them."""
    floor, controls_off = floor_of(measured)
    return tuple(judge_by(original, one, floor, controls_off) for one in measured)


def judge_by(original: Original, one: Measured, floor: float, controls_off: bool = False) -> Judged:
    """One replay judged by a floor that was measured before."""
    if original.hard is not None:
        reading, words = _hard(original.hard, one)
    elif original.unsteady:
        reading, words = _unsteady(original, one)
    else:
        reading, words = _divergence(original, one, floor, controls_off)
    d = _largest(one)
    score, max_abs, onset = (0.0, 0.0, 0) if d is None else (d.score, d.max_abs, d.onset)
    return Judged(reading, score, max_abs, onset, floor, words)


def _largest(one: Measured) -> Divergence | None:
    return max(one.warm, key=lambda d: d.score, default=None)


def _hard(wanted: ProbeOutcome, one: Measured) -> tuple[Reading, str]:
    if one.hard is wanted:
        return Reading.REPRODUCED, f"{wanted.value} again: {one.note}"
    met = f"; {one.hard.value} instead: {one.note}" if one.hard is not None else ""
    return Reading.NOT_REPRODUCED, f"no {wanted.value} this time{met}"


def _unsteady(original: Original, one: Measured) -> tuple[Reading, str]:
    again = max((d.score for d in one.cold), default=None)
    if again is None:
        return Reading.NO_ANSWER, one.note or "no two cold passes to compare"
    bound = max(SHARE_OF_ORIGINAL * (original.cold or 0.0), UNSTEADY_FLOOR)
    words = f"cold passes of the same ids differ by a score of {again:.2g}; from {bound:.2g} on they count"
    return Reading.REPRODUCED if again >= bound else Reading.NOT_REPRODUCED, words


def _divergence(original: Original, one: Measured, floor: float, controls_off: bool) -> tuple[Reading, str]:
    d = _largest(one)
    if d is None:
        return Reading.NO_ANSWER, one.note or "no warm pass to compare"
    if d.score == 0.0:
        return Reading.NOT_REPRODUCED, "warm and cold agree to the last bit"
    noise = f"{d.score / floor:.3g} times the noise measured here" if floor else "no noise measured here"
    if d.score <= CLEAR_OF_NOISE * floor:
        return Reading.NOT_REPRODUCED, f"{noise}; more than {CLEAR_OF_NOISE:g} times is wanted"
    if d.score < (SHARE_OF_ORIGINAL if floor else SHARE_IF_EXACT) * original.score:
        return Reading.NOT_REPRODUCED, f"{noise}, and only {d.score / original.score:.2g} of the original's"
    every = "; controls are off as well: every resume of this kind is wrong" if controls_off else ""
    return Reading.REPRODUCED, noise + every
