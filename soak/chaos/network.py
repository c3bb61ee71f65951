"""What a proxy does to one connection while something is in force: pure choices, drawn per connection.

A connection is spoiled or not by (seed, its number) alone: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from soak.drive.deed import CONNECTION_LOSS, HALF_OPEN, LATENCY, SLOW_READER, TRUNCATE, Settings
from soak.plan.words import Draw


@dataclass(frozen=True, slots=True)
class Manner:
    """How one connection is treated. Milliseconds and bytes; None: not at all.

    lost: it is reset; deaf: nothing passes any more; bytes_per_second: of answers; cut_after: so many bytes
    of answers, then an end in good order.
    """

    delay_ms: int = 0
    jitter_ms: int = 0
    seed: int = 0
    lost: bool = False
    deaf: bool = False
    bytes_per_second: int | None = None
    cut_after: int | None = None


def manner_of(in_force: Mapping[str, Settings], connection: int) -> Manner:
    """What all that is in force makes of a connection of that number, counted from 0."""
    latency, slow = in_force.get(LATENCY, {}), in_force.get(SLOW_READER, {})
    cut = in_force.get(TRUNCATE)
    return Manner(
        delay_ms=int(latency.get("delay_ms", 0)),
        jitter_ms=int(latency.get("jitter_ms", 0)),
        seed=int(latency.get("seed", 0)),
        lost=_chosen(in_force.get(CONNECTION_LOSS), connection),
        deaf=_chosen(in_force.get(HALF_OPEN), connection),
        bytes_per_second=int(slow["bytes_per_second"]) if slow else None,
        cut_after=int(cut["after_bytes"]) if cut is not None and _chosen(cut, connection) else None,
    )


def _chosen(settings: Settings | None, connection: int) -> bool:
    if settings is None:
        return False
    return Draw(int(settings["seed"]), "chaos connection", connection).chance(
        int(settings["share_per_mille"])
    )


def delay_s(manner: Manner, connection: int, piece: int) -> float:
    """How much later a piece of what passes arrives, in seconds."""
    if not (manner.delay_ms or manner.jitter_ms):
        return 0.0
    jitter = Draw(manner.seed, f"chaos jitter {connection}", piece).between(0, manner.jitter_ms * 1000)
    return manner.delay_ms / 1000 + jitter / 1e6
