"""From the false alarms that people can live with to the run length A. Pure arithmetic."""

from __future__ import annotations

import math

YEAR_S = 31_557_600.0
"""Seconds in a Julian year."""

SUMS = 2
"""Sums that can raise an alarm with a bound on its run length: main, and paired."""

SHORTEST = 100.0
"""A run length under this says nothing: the detectors would alarm within a minute or two."""


def run_length_for(false_alarms_per_year: float, fleet_size: int, probes_per_second: float) -> float:
    """The run length A, in probes of one soak, that keeps a fleet to so many false alarms a year.

    fleet_size: soaks that run all year, each with detectors of its own; probes_per_second: the highest rate
    of one of them. Each of its two sums alarms falsely at most once in A probes on average, so a fleet of N
    at r probes a second has at most 2 N r Y / A false alarms in a year of Y seconds: A = 2 N r Y / F. A soak
    that probes more slowly has fewer. It counts on every false alarm being acknowledged, upon which the
    evidence of its stream begins anew; what other streams had gathered by then is not counted.

    Raises ValueError for numbers that make no sense, and for an A under 100.
    """
    for name, value in (
        ("false_alarms_per_year", false_alarms_per_year),
        ("fleet_size", fleet_size),
        ("the probe rate", probes_per_second),
    ):
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} is {value}: give a number over 0")
    length = SUMS * fleet_size * probes_per_second * YEAR_S / false_alarms_per_year
    if length < SHORTEST:
        raise ValueError(
            f"false_alarms_per_year {false_alarms_per_year:g} comes to a run length of {length:.3g} probes, "
            f"which is under {SHORTEST:g}: allow fewer false alarms"
        )
    return length


def run_length_words(false_alarms_per_year: float, fleet_size: int, probes_per_second: float) -> str:
    """Where the number comes from, as a sentence for the statement of the guarantee."""
    fleet = "one soak" if fleet_size == 1 else f"a fleet of {fleet_size} soaks"
    return (
        f"That is at most {false_alarms_per_year:g} false alarms a year on average, CORRUPT and SUSPECT "
        f"together, for {fleet} at no more than {probes_per_second:g} probes a second each, if alarms are "
        "acknowledged and evidence then begins anew."
    )
