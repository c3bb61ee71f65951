"""Longer records out of recorded ones: clean blocks, and a fault that is made rare. Nothing new is observed.

A record that was made longer shows what a rule would do with more of the same. It cannot show what was never
recorded, and the page says which figures rest on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from soak.bench.detect.records import Probe
from soak.plan.words import Draw

BLOCK = 32
"""Probes of a block: more than the ceilings' window of 20."""


def bootstrap(runs: Sequence[Sequence[Probe]], count: int, seed: int) -> Iterator[Probe]:
    """``count`` probes in blocks of consecutive ones of one run, drawn with replacement.

    What hangs together over a few probes still does (Künsch, 1989).
    """
    given = block = 0
    while given < count:
        draw = Draw(seed, "bench-bootstrap", block)
        run = draw.choice(runs)
        start = draw.below(max(1, len(run) - BLOCK + 1))
        for probe in run[start : start + BLOCK][: count - given]:
            yield probe
            given += 1
        block += 1


def acts_of(runs: Sequence[Sequence[Probe]], *, together: bool) -> list[list[Probe]]:
    """The probes of every act in which a fault's conditions came together, or of every other act."""
    return [
        held
        for run in runs
        for _, group in groupby(run, key=lambda probe: probe.act)
        for held in [list(group)]
        if held[0].together is together
    ]


def made_rare(runs: Sequence[Sequence[Probe]], per_mille: int, count: int, seed: int) -> list[Probe]:
    """``count`` probes, act by act, the conditions coming together in so many of 1,000 acts.

    Raises ValueError where acts of either sort are missing.
    """
    with_fault, without = (acts_of(runs, together=together) for together in (True, False))
    if not with_fault or not without:
        raise ValueError(
            "a fault is made rare out of acts with and without its conditions; one sort is missing"
        )
    probes: list[Probe] = []
    number = 0
    while len(probes) < count:
        draw = Draw(seed, "bench-rare", number)
        probes += draw.choice(with_fault if draw.chance(per_mille) else without)
        number += 1
    return probes[:count]
