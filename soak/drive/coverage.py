"""Which conjunctions a run reached, from what was observed: never from what was planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from soak.drive.beside_others import BESIDE_OTHERS, SIGNS, Look, OthersEnded
from soak.drive.conjunctions import CONJUNCTIONS
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.drive.observation import Observation
from soak.oracle.probe import ProbeResult
from soak.plan.geometry import Geometry
from soak.plan.shapes import planted
from soak.runners.faults import FAULTS
from soak.sglang.server_metrics import ServerMetrics
from soak.sglang.session import NOTHING, Ours

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
        self._beside_others = planted.NAME in active
        known = BESIDE_OTHERS if self._beside_others else CONJUNCTIONS
        self._watched = [c for c in known if self._beside_others or c.reached_by in active]
        self._state = {
            c.name: CoverageState.NOT_REACHED if c.applicable(geometry) else CoverageState.NOT_APPLICABLE
            for c in self._watched
        }
        if self._beside_others:
            for c in self._watched:
                if c.reached_by != planted.NAME or c.name in SIGNS:
                    self._untold(c.name)
        self._looked: tuple[ServerMetrics, Ours] | None = None
        self._others_ended = OthersEnded()
        self._count = {c.name: 0 for c in self._watched}
        self._last: dict[str, float] = {}
        self._probes = {c.name: 0 for c in self._watched}
        self._counted: dict[str, float] = {}
        self._why: dict[str, str] = {}  # of those that are ruled out

    def rule_out(self, names: Mapping[str, str]) -> None:
        """Conjunctions that this server cannot have, each with why."""
        for name in names.keys() & self._state.keys():
            self._state[name] = CoverageState.NOT_APPLICABLE
            self._why[name] = names[name]

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

    def _untold(self, name: str) -> None:
        if self._state[name] is not CoverageState.NOT_APPLICABLE:
            self._state[name] = CoverageState.UNOBSERVABLE

    def _look(self, server: ServerMetrics, ours: Ours) -> None:
        """What the server's counters say of others since the last scrape."""
        looked, self._looked = self._looked, (server, ours)
        ended = self._others_ended.look(server.requests_total, ours)
        look = None if looked is None else Look(looked[0], server, looked[1], ours, ended)
        for name, sign in SIGNS.items():
            if self._state[name] is CoverageState.UNOBSERVABLE and sign.told(server):
                self._state[name] = CoverageState.NOT_REACHED
            if look is not None and sign.seen(look, self._geometry):
                self._reached(name, CoverageState.PRESUMED)

    def observe_server(self, server: ServerMetrics | None, ours: Ours = NOTHING) -> None:
        """One scrape of the server, None if there is none. ours: what of this run was there meanwhile.

        A counter that rose says that it happened, not that it happened to one of us: so it is presumed, and
        only as long as no answer has confirmed it. A counter that is not there yet has not counted anything.
        """
        if server is None:
            return
        if self._beside_others:
            if self._looked is None or self._looked[0] is not server:
                self._look(server, ours)
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
                note=self._why.get(c.name, c.note),
                needed_by=needed_by(c.conditions),
            )
            for c in self._watched
        ]
