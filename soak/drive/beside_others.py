"""Coverage of a run without load of its own: what other people's traffic did, as far as the server says.

Nobody's answers but ours are seen, so the most that can be said of others is that the server's own counters
moved: presumed. What no counter tells is unobservable, never not-reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from soak.drive.conjunctions import CONJUNCTIONS, Conjunction
from soak.drive.coverage_state import CoverageState
from soak.oracle.probe import ResumeKind
from soak.plan.geometry import Geometry
from soak.plan.shapes import planted
from soak.sglang.server_metrics import ServerMetrics
from soak.sglang.session import Ours


class OthersEnded:
    """Requests of others that the server has ended, at least: all that it counts, less all of ours that
    it may have counted by then. Light traffic shows in it, which no look happens to see running.
    """

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None  # what it counted, and ours that had their answer
        self._counted = self._known = 0.0

    def look(self, counted: float | None, ours: Ours) -> float:
        """How many more there are than were known; 0 where the server does not count, or has begun anew."""
        if counted is None:
            return 0.0
        if self._first is None or counted < self._counted:
            self._first, self._known = (counted, ours.answered), 0.0
        self._counted = counted
        first, answered = self._first
        more = counted - first - (ours.sent - answered) - self._known
        self._known += max(0.0, more)
        return max(0.0, more)


@dataclass(frozen=True, slots=True)
class Look:
    """Two scrapes in a row, what of ours was on the server while either was made, and how many requests of
    others are known to have ended in between.
    """

    before: ServerMetrics
    now: ServerMetrics
    ours_before: Ours
    ours: Ours
    ended: float = 0.0

    @property
    def others(self) -> float:
        """Requests of others that ran at both, at least: ours may have waited. A server that counts anew only
        now and then (SGLang's decode does every few dozen steps) may count ours a while longer.
        """
        return min(
            (self.before.running or 0.0) - self.ours_before.in_flight,
            (self.now.running or 0.0) - self.ours.in_flight,
        )

    def rose(self, of: Callable[[ServerMetrics], float | None]) -> float:
        """By how much that counter rose; nothing where it was not there."""
        before, now = of(self.before), of(self.now)
        return 0.0 if before is None or now is None else max(0.0, now - before)


def _cached(server: ServerMetrics) -> float | None:
    return sum(server.cached_tokens_total.values()) if server.cached_tokens_total else None


def _prompts(server: ServerMetrics) -> float | None:
    return server.prompt_tokens_total


@dataclass(frozen=True, slots=True)
class Sign:
    """told: whether the server counts what it takes; seen: whether one look shows it."""

    told: Callable[[ServerMetrics], bool]
    seen: Callable[[Look, Geometry], bool]


def _others_prefill(least: float) -> Callable[[Look, Geometry], bool]:
    return lambda look, g: look.others >= 2 and look.rose(_prompts) > least * g.chunk


_PREFILLS = Sign(
    lambda server: server.running is not None and _prompts(server) is not None, _others_prefill(0.0)
)

SIGNS: dict[str, Sign] = {
    "beside-others": Sign(
        lambda server: server.running is not None or server.requests_total is not None,
        lambda look, _: look.ended >= 1 or look.others >= 1,
    ),
    "prefix-hit": Sign(
        lambda server: server.running is not None and _cached(server) is not None,
        lambda look, _: look.others >= 1 and look.rose(_cached) > 0,
    ),
    "co-batched-chunked-prefill": replace(_PREFILLS, seen=_others_prefill(1.0)),
    "co-batched-prefill": _PREFILLS,
    "narrow-after-wide-prefill": _PREFILLS,
    "retraction": Sign(
        lambda server: server.retracted_total is not None,
        lambda look, _: look.rose(lambda server: server.retracted_total) > 0,
    ),
    "host-tier-resume": Sign(
        lambda server: "host" in server.cached_tokens_total,
        lambda look, _: look.rose(lambda server: server.cached_tokens_total.get("host")) > 0,
    ),
}
"""What the server's own counters tell of others' traffic; every other conjunction is unobservable."""


def _never(*_: object) -> CoverageState:
    return CoverageState.NOT_REACHED


_OURS = (
    Conjunction(
        "planted-resume",
        planted.NAME,
        ("prefix_hit",),
        _never,
        lambda probe, _: probe.shape == planted.NAME and probe.resume_boundary > 0,
        "a probe resumed from a prefix that was planted a while ago",
        probe_confirms=True,
    ),
    Conjunction(
        "planted-decode-resume",
        planted.NAME,
        ("decode_past_interval",),
        _never,
        lambda probe, _: probe.kind is ResumeKind.DECODE,
        "a probe resumed inside tokens that were generated a while ago",
        probe_confirms=True,
    ),
    Conjunction(
        "beside-others",
        planted.NAME,
        (),
        _never,
        lambda probe, _: probe.shape == planted.NAME,
        "requests of others ran while ours lay in the cache; the server's numbers of requests say so",
    ),
)


def _of_others(conjunction: Conjunction) -> Conjunction:
    return replace(
        conjunction,
        reached_by="users",
        by_load=_never,
        by_probe=lambda probe, _: False,
        probe_confirms=False,
        note=f"users' traffic: {conjunction.note}",
    )


BESIDE_OTHERS = (*_OURS, *(_of_others(c) for c in CONJUNCTIONS if c.by_users))

REQUIRED_BESIDE_OTHERS = ("planted-resume", "beside-others")
"""Without these a run without load has looked at nothing, or at a server that nobody used."""
