"""Coverage in words: which conjunctions a run reached, by which kind of knowledge."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CoverageState(enum.StrEnum):
    """From knowing nothing to the server's own word."""

    NOT_APPLICABLE = "not-applicable"  # this server cannot have it
    UNOBSERVABLE = "unobservable"  # this server gives no way to tell
    NOT_REACHED = "not-reached"
    PRESUMED = "presumed"  # the right requests were in flight together
    CONFIRMED = "confirmed"  # the server's own counters, cached_tokens or num_retractions say so


@dataclass(frozen=True, slots=True)
class ConjunctionCoverage:
    """One conjunction: how often it was reached, when last, how many valid probes looked at a victim of it.

    last_s: seconds since the start of the run, None if never. reached_by: the shape that reaches it.
    needed_by: the known faults that cannot show without it.
    """

    name: str
    state: CoverageState
    count: int
    last_s: float | None
    probes: int
    reached_by: str
    note: str = ""
    needed_by: tuple[str, ...] = ()
