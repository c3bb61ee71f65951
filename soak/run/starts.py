"""Has the server behind an address started anew? Told from what it says of its start, and from its counters.

A process is known by its start: the seconds that it took and the seed that was drawn, which no two starts
share. Behind a router several processes answer in turn, each with a start and counters of its own, and that
one of them answers after another is no restart. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from soak.sglang.preflight import ServerNow
from soak.sglang.server_metrics import ServerMetrics

_COUNTERS = ("requests_total", "prompt_tokens_total", "generation_tokens_total", "aborted_total")


class Starts:
    """Of one address. known: who answered last; beside: who was seen to answer in turn with it."""

    def __init__(self, known: ServerNow, beside: Iterable[ServerNow] = ()) -> None:
        self.known = known
        self._met = {known.start, *(one.start for one in beside)}
        self.turns = len(self._met) > 1  # several processes answer in turn
        self.more = False  # whether the last look met one more of them

    def same(self, seen: ServerNow) -> bool:
        """Whether that is a process that was met before and goes on."""
        mine = seen.start in self._met if self.turns else seen.start == self.known.start
        return mine and seen.fingerprint == self.known.fingerprint

    def judge(
        self,
        seen: ServerNow,
        before: ServerMetrics | None,
        metrics: ServerMetrics | None,
        *,
        gone: bool,
    ) -> tuple[bool | None, str]:
        """Whether it has started anew, None if nothing tells, and what tells it.

        ``seen`` is known from now on. before, metrics: counters of the look before and of this one; gone:
        nothing answered in between.
        """
        if seen.start != self.known.start and seen.start in self._met:
            self.turns = True  # a process that has ended does not come back
        if self.turns:
            told = self._one_of_several(seen, gone)
        else:
            told = self._by_start(seen, fell(before, metrics)) or self._by_counters(
                seen, before, metrics, gone
            )
        self.known = seen
        self._met.add(seen.start)
        return told

    def _one_of_several(self, seen: ServerNow, gone: bool) -> tuple[bool | None, str]:
        """Counters are of whoever was asked, and tell nothing."""
        self.more = seen.start not in self._met
        if not self.more:
            return False, "one of several that answer there, met before"
        if gone:
            return True, "one of several that answer there, of another start than all that were met before"
        return False, "one of several that answer there, not met before"

    def _by_start(self, seen: ServerNow, fallen: str) -> tuple[bool | None, str] | None:
        if not (seen.started and self.known.started):
            return (True, fallen) if fallen else None
        # before the counters: they may have passed where they were between two looks
        if seen.started != self.known.started:
            return True, fallen or "it says that it was started anew"
        if fallen and seen.seed == self.known.seed:
            return False, f"it says that it was not started anew, although {fallen}"
        return (True, fallen) if fallen else None

    def _by_counters(
        self, seen: ServerNow, before: ServerMetrics | None, metrics: ServerMetrics | None, gone: bool
    ) -> tuple[bool | None, str]:
        if _goes_on(before, metrics):
            return False, "its counters go on"
        if seen.start != self.known.start:
            return True, "it says that it was started anew"
        if seen.started:
            return False, "it says that it was not started anew"
        return None if gone else False, "nothing it says tells a restart"


def fell(before: ServerMetrics | None, metrics: ServerMetrics | None) -> str:
    """What says that counters began again, empty if nothing does."""
    if before is None or metrics is None:
        return ""
    for name in _COUNTERS:
        was, now = getattr(before, name), getattr(metrics, name)
        if was is not None and now is not None and now < was:
            return f"its {name} fell from {was:g} to {now:g}"
    return ""


def _goes_on(before: ServerMetrics | None, metrics: ServerMetrics | None) -> bool:
    """Whether counters above zero are still where they were, or beyond."""
    if metrics is None or before is None:
        return False
    were = [(name, getattr(before, name)) for name in _COUNTERS]
    told = [(name, value) for name, value in were if value and getattr(metrics, name) is not None]
    return bool(told) and all(getattr(metrics, name) >= value for name, value in told)
