"""What the bench aims at, and what must not be. It computes from an outcome and records nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from soak.bench.detect.grading import Quantiles
from soak.bench.detect.outcome import RARE, FaultOutcome, Judged, Outcome
from soak.bench.detect.rules import PUBLIC_SAMPLES


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim: its words, whether it was met, and what was against it."""

    words: str
    met: bool
    against: tuple[str, ...]


OFTEN = 0.10
ENOUGH = 200


def aims(found: Outcome) -> list[Aim]:
    """What the bench aims at, and whether it got there."""
    told = [f for f in found.faults if not f.unseen]
    often = [f for f in told if f.signal.share + f.signal.hard >= OFTEN and f.over_floor]
    loud = [f for f in told if f.judged["production"].public[0].median <= PUBLIC_SAMPLES]
    under = [f for f in told if not f.over_floor]

    def against(cases: Sequence[FaultOutcome], bar: float) -> tuple[str, ...]:
        needed = [(f, f.judged["production"].alarm.median) for f in cases]
        return tuple(f"{f.scene}: median {_number(probes)}" for f, probes in needed if not probes <= bar)

    def tenfold(rule: Callable[[Judged], Quantiles]) -> tuple[str, ...]:
        return tuple(
            f"{f.scene}: {_number(f.rare.alarm.median)} against {_number(rule(f.rare).median)}"
            for f in told
            if f.rare is not None and not _tenth(f.rare.alarm.median, rule(f.rare).median)
        )

    wrongly = tuple(
        f"{kind}: {held.extended.alarms}" for kind, held in found.clean.items() if held.extended.alarms
    )
    drifted = tuple(f"{d.name}: {d.alarms}" for d in found.drifts if d.alarms and not d.bound_crossed)
    seen = tuple(f.scene for f in under if f.judged["exact"].alarm.found < 1)
    rare = [f for f in told if f.rare is not None]
    tenth = f"spoiling {RARE:.0%}: a tenth of the probes of the public rule"
    first = f"where the public rule needs its first {PUBLIC_SAMPLES} samples: no more than they"
    listed: list[tuple[Sequence[object], str, tuple[str, ...]]] = [
        (
            often,
            f"spoiling {OFTEN:.0%} of probes or more: median of at most {ENOUGH} probes",
            against(often, ENOUGH),
        ),
        (rare, f"{tenth} at 0.0025", tenfold(lambda judged: judged.public[1])),
        (rare, f"{tenth} where it has no false alarm either", tenfold(lambda judged: judged.quiet)),
        (loud, first, against(loud, PUBLIC_SAMPLES)),
        (under, "under the floor of the noise: found by exact mode", seen),
        (tuple(found.clean), "no false alarm on clean probes", wrongly),
        (found.drifts, "drift inside the bounds does not alarm", drifted),
    ]
    return [Aim(words, not wrong, wrong) for cases, words, wrong in listed if cases]


def _tenth(ours: float, theirs: float) -> bool:
    """Whether ten times as many would still not be more; never, where there was no end within the record."""
    return math.isfinite(ours) and 10 * ours <= theirs


def _number(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "not within the record"


def lost(found: Outcome) -> list[str]:
    """What must not be: a fault that a comparison can tell and some run did not find, or a false alarm."""
    wrong = []
    for each in found.faults:
        for numerics, held in each.judged.items():
            under_floor = numerics == "production" and not each.over_floor
            if not each.unseen and not under_floor and held.alarm.found < 1:
                share = held.alarm.found
                wrong.append(f"{each.scene} on {numerics} servers: found in {share:.0%} of {held.runs} runs")
    for numerics, clean in found.clean.items():
        if clean.at_calibration:
            wrong.append(f"clean {numerics} server: {', '.join(clean.at_calibration)} in calibration")
        for alarms in (clean.recorded, clean.extended):
            if alarms.alarms:
                wrong.append(f"clean {numerics} server: {alarms.alarms} over {alarms.probes} probes")
    return wrong
