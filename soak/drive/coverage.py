"""Which conjunctions a run reached, from what was observed: never from what was planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.drive.observation import Observation
from soak.oracle.probe import ProbeResult, ResumeKind
from soak.plan.geometry import Geometry
from soak.runners.faults import FAULTS

_ORDER = (CoverageState.NOT_REACHED, CoverageState.PRESUMED, CoverageState.CONFIRMED)


@dataclass(frozen=True, slots=True)
class _Conjunction:
    """A set of conditions, by the observations that show it and the probes that look at a victim of it.

    conditions: their names in the known-fault table.
    """

    name: str
    reached_by: str
    conditions: tuple[str, ...]
    by_load: Callable[[Observation, Geometry], CoverageState]
    by_probe: Callable[[ProbeResult, Geometry], bool]
    note: str
    applicable: Callable[[Geometry], bool] = lambda geometry: True
    probe_confirms: bool = False  # a probe that looked at a victim of it went through it as well


def _confirmed(held: bool) -> CoverageState:
    return CoverageState.CONFIRMED if held else CoverageState.NOT_REACHED


def _presumed(held: bool) -> CoverageState:
    return CoverageState.PRESUMED if held else CoverageState.NOT_REACHED


CONJUNCTIONS = (
    _Conjunction(
        "prefix-hit",
        "shared-prefix",
        ("prefix_hit",),
        lambda seen, _: _confirmed(seen.item.shape == "shared-prefix" and seen.answer.cached_tokens > 0),
        lambda probe, _: probe.shape == "shared-prefix",
        "a later request resumed from what an earlier one left; the server's cached_tokens say so",
    ),
    _Conjunction(
        "far-context-resume",
        "long-context",
        ("prefix_hit",),
        lambda seen, g: _confirmed(
            seen.item.shape == "long-context" and seen.answer.cached_tokens > min(g.chunk, len(seen.ids) // 2)
        ),
        lambda probe, g: (
            probe.shape == "long-context" and probe.resume_boundary > min(g.chunk, probe.victim_tokens // 2)
        ),
        "a prompt near the context limit resumed from more than a chunk of its own past",
        probe_confirms=True,
    ),
    _Conjunction(
        "co-batched-chunked-prefill",
        "chunked-burst",
        ("co_batched_prefill", "chunked_prefill"),
        lambda seen, _: _presumed(
            seen.item.shape == "chunked-burst" and seen.answer.ok and seen.prefilling_companions > 0
        ),
        lambda probe, _: probe.shape == "chunked-burst",
        "two or more prompts longer than a chunk were in flight together; no answer says who shared a batch",
        applicable=lambda g: g.chunk < g.context_len - 1,
    ),
    _Conjunction(
        "decode-written-resume",
        "decode-seeded",
        ("decode_past_interval",),
        lambda seen, _: _confirmed(_resumed_in_generated(seen)),
        lambda probe, _: probe.kind is ResumeKind.DECODE,
        "a request resumed inside tokens that an earlier one had generated",
        probe_confirms=True,
    ),
)

CONJUNCTION_NAMES = tuple(c.name for c in CONJUNCTIONS)


def _resumed_in_generated(seen: Observation) -> bool:
    # A follow-up's own segments end its prompt; before them stand its parent's prompt and output. That more
    # than the parent's prompt was cached shows in the probes; here, that the hit reaches the last tokens.
    if seen.item.parent is None:
        return False
    own = sum(p.length for p in seen.item.prompts)
    return seen.answer.cached_tokens >= len(seen.ids) - own - 1 > 0


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
