"""One thing done on purpose to a server, or to the way to it, as it went. Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FLUSH, PAUSE, RELOAD = "flush", "pause", "reload"
RETRACTION, PRESSURE, ABORT_STORM = "retraction", "pressure", "abort-storm"
RESTART, KILL, ROLLING_RESTART = "restart", "kill", "rolling-restart"
LATENCY, CONNECTION_LOSS, HALF_OPEN = "latency", "connection-loss", "half-open"
SLOW_READER, TRUNCATE = "slow-reader", "truncate"

PLAYABLE = frozenset({FLUSH, PAUSE, RELOAD, RETRACTION, PRESSURE, ABORT_STORM})
"""What a replay can do again with nothing but the server's own HTTP; the others need a command or a proxy."""

OF_THE_NETWORK = (LATENCY, CONNECTION_LOSS, HALF_OPEN, SLOW_READER, TRUNCATE)
NAMES = (
    FLUSH, PAUSE, RELOAD, RETRACTION, PRESSURE, ABORT_STORM, RESTART, KILL, ROLLING_RESTART, *OF_THE_NETWORK,
)  # fmt: skip

LOAD = "load"
"""The target of what no experiment did but the plan of the load, which pauses the server it is sent to."""

IN_FORCE, DONE, FAILED, UNDONE = "in force", "done", "failed", "undone"

Settings = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Deed:
    """number: its place in the schedule. Times are seconds of ``time.monotonic()``; ended_s None in force.

    settings: all that is needed to do it again, plain values, no address and no command. outcome: in force,
    done, failed, or undone (ended before its time). detail: in words.
    """

    number: int
    name: str
    target: str
    began_s: float
    ended_s: float | None = None
    settings: Settings = field(default_factory=dict)
    outcome: str = IN_FORCE
    detail: str = ""
