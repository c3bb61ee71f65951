"""Which conjunctions a run reached, from what was observed: never from what was planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from soak.drive.conjunctions import CONJUNCTIONS
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.drive.observation import Observation
from soak.oracle.probe import ProbeResult
from soak.plan.geometry import Geometry
from soak.runners.faults import FAULTS
from soak.sglang.server_metrics import ServerMetrics

_ORDER = (CoverageState.NOT_REACHED, CoverageState.PRESUMED, CoverageState.CONFIRMED)

_COUNTED: dict[str, Callable[[ServerMetrics], float | None]] = {
    "retraction": lambda server: server.retracted_total,
    "host-tier-resume": lambda server: server.cached_tokens_total.get("host"),
}
"""Conjunctions that the server's own /metrics counts, for whoever's request."""


def needed_by(conditions: tuple[str, ...]) -> tuple[str, ...]:
    """The known faults that cannot show without one of these conditions, in the table's order."""
    return tuple(
        fault.name for fault in FAULTS if any(needed.name in conditions for needed in fault.conditions)
    )


class Coverage:
    """Counts per conjunction; bounded, whatever the length of the run."""

    def __init__(
        self, geometry: Geometry, shapes: Iterable[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._geometry = geometry
        self._clock = clock
        self._start = clock()
        active = set(shapes)
        self._watched = [c for c in CONJUNCTIONS if c.reached_by in active]
        self._state = {
            c.name: CoverageState.NOT_REACHED if c.applicable(geometry) else CoverageState.NOT_APPLICABLE
            for c in self._watched
        }
        self._count = {c.name: 0 for c in self._watched}
        self._last: dict[str, float] = {}
        self._probes = {c.name: 0 for c in self._watched}
        self._counted: dict[str, float] = {}

    def observe_load(self, seen: Observation) -> None:
        """One answered load prompt."""
        for conjunction in self._watched:
            state = conjunction.by_load(seen, self._geometry)
            if state is not CoverageState.NOT_REACHED:
                self._reached(conjunction.name, state)

    def observe_probe(self, probe: ProbeResult) -> None:
        """One probe; only valid ones count."""
        if not probe.valid:
            return
        for conjunction in self._watched:
            if conjunction.by_probe(probe, self._geometry):
                self._probes[conjunction.name] += 1
                if conjunction.probe_confirms:
                    self._reached(conjunction.name, CoverageState.CONFIRMED)

    def observe_server(self, server: ServerMetrics | None) -> None:
        """One scrape of the server, None if there is none.

        A counter that rose says that it happened, not that it happened to one of us: so it is presumed, and
        only as long as no answer has confirmed it. A counter that is not there yet has not counted anything.
        """
        if server is None:
            return
        for name in _COUNTED.keys() & self._state.keys():
            now, before = _COUNTED[name](server), self._counted.get(name)
            if now is None:
                self._counted.setdefault(name, 0.0)
                continue
            self._counted[name] = now
            if before is not None and now > before and self._state[name] is not CoverageState.CONFIRMED:
                self._reached(name, CoverageState.PRESUMED)

    def _reached(self, name: str, state: CoverageState) -> None:
        if self._state[name] is CoverageState.NOT_APPLICABLE:
            return
        self._count[name] += 1
        self._last[name] = self._clock() - self._start
        if _ORDER.index(state) > _ORDER.index(self._state[name]):
            self._state[name] = state

    def report(self) -> list[ConjunctionCoverage]:
        """Every watched conjunction, in a fixed order."""
        return [
            ConjunctionCoverage(
                name=c.name,
                state=self._state[c.name],
                count=self._count[c.name],
                last_s=self._last.get(c.name),
                probes=self._probes[c.name],
                reached_by=c.reached_by,
                note=c.note,
                needed_by=needed_by(c.conditions),
            )
            for c in self._watched
        ]
