"""Is it still the same server, with the same cache? Notices that it went away, came back, or was replaced.

A run is about one server. While nothing answers, load and probes wait, and what was lost with the server is
counted apart from what it did in good order. A server that comes back as it was has an empty cache; one that
comes back as another is said to be one, since neither calibration nor evidence is about it. Judges no probe.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from soak.drive.brake import Brake
from soak.drive.observation import Observation
from soak.run.starts import Starts, fell
from soak.sglang.exchange import Outcome
from soak.sglang.preflight import ServerNow, TargetUnusable
from soak.sglang.server_metrics import ServerMetrics

GONE = "server-gone"
"""Why load waits while nothing answers; such prompts count against nobody."""

_LOOK_EVERY_S = 10.0
_MOST_HELD = 10_000
_GATEWAY = (502, 503, 504)  # what a proxy says for a server that is not there


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without the server, seconds of ``time.monotonic()``.

    ended_s: None while it lasts. restarted: whether it is known to have started anew, None if that cannot be
    told. words: what tells it.
    """

    began_s: float
    ended_s: float | None
    restarted: bool | None
    words: str

    def seconds(self, now_s: float) -> float:
        """How long it has lasted."""
        return (now_s if self.ended_s is None else self.ended_s) - self.began_s


class Continuity:
    """Told after every look at the server; ``ask`` asks it who it is, and raises TargetUnusable.

    known: who it was when it was examined; beside: who answered there in turn, as a router's workers do.
    on_restart: the cache is gone. settle: what became of a load answer that was held back, and whether it was
    lost with the server. Used from the event loop only.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[ServerNow]],
        known: ServerNow,
        brake: Brake,
        *,
        on_restart: Callable[[], None],
        settle: Callable[[Observation, bool], None],
        say: Callable[[str], None],
        beside: Iterable[ServerNow] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._starts, self._brake = ask, Starts(known, beside), brake
        self._on_restart, self._settle, self._say, self._clock = on_restart, settle, say, clock
        self._held: list[Observation] = []
        self._latest: ServerMetrics | None = None
        self._looked_s = clock()
        self._open: Gap | None = None
        self._gone_before = 0.0
        self.gaps: list[Gap] = []
        self.epoch = 0  # counts what may have changed the server under a probe
        self.another = ""

    # What the run asks

    @property
    def gone(self) -> bool:
        """Whether nothing answers now."""
        return self._open is not None

    @property
    def gone_s(self) -> float:
        """Seconds that the present gap has lasted, 0 without one."""
        return 0.0 if self._open is None else self._open.seconds(self._clock())

    @property
    def all_gone_s(self) -> float:
        """Seconds without the server, over all gaps."""
        return self._gone_before + self.gone_s

    def all_gaps(self) -> list[Gap]:
        """Those that ended and the present one."""
        return [*self.gaps, *([self._open] if self._open is not None else [])]

    async def same_since(self, epoch: int) -> bool:
        """Whether the server is surely the one of that epoch, asked now: before something bad is believed."""
        if self.epoch != epoch or self.gone:
            return False
        try:
            now = await self._ask()
        except TargetUnusable:
            return False
        if not self._starts.same(now):
            self._looked_s = 0.0  # the next look says what happened
            return False
        return self.epoch == epoch

    # What it is told

    def observe(self, seen: Observation) -> None:
        """One load answer; one that may have been lost with the server waits for the next look."""
        answer = seen.answer
        lost = answer.outcome in (Outcome.DISCONNECTED, Outcome.TIMED_OUT) or answer.http_status in _GATEWAY
        if lost and len(self._held) < _MOST_HELD:
            self._held.append(seen)
        else:
            self._settle(seen, False)

    def goes_on_from(self, before: Continuity) -> None:
        """Take over the gaps of the server before, which this one follows."""
        self.gaps = list(before.gaps)
        self._gone_before = before.all_gone_s

    def let_go(self) -> None:
        """Settle what is held: no further look will come."""
        self._settle_held(self.gone)

    async def polled(self, alive: bool, metrics: ServerMetrics | None, silent_since_s: float) -> str:
        """After a look at the server; words as soon as another one answers in its place.

        silent_since_s: when anything last answered.
        """
        now = self._clock()
        if not alive:
            if self._open is None and silent_since_s < now - 0.5:
                self._went_away(silent_since_s)
            if self._open is not None:
                self._settle_held(True)
            return ""
        fallen = "" if self._starts.turns else fell(self._latest, metrics)
        if not (self.gone or fallen or self._held or now - self._looked_s >= _LOOK_EVERY_S):
            self._latest = metrics or self._latest
            return ""
        try:
            seen = await self._ask()
        except TargetUnusable as error:  # it answers, and not yet as a server
            if self._open is None and (fallen or self._held):
                self._went_away(silent_since_s, f": {error}")
            return ""
        self._looked_s = self._clock()
        return self._looked(seen, metrics)

    def _looked(self, seen: ServerNow, metrics: ServerMetrics | None) -> str:
        differs = self._starts.known.fingerprint.differences(seen.fingerprint)
        if differs:
            self.epoch += 1
            self._settle_held(True)
            self._end_gap(restarted=True, words="another server")
            self.another = f"another server answers in its place: {'; '.join(differs)}"
            return self.another
        was_gone, turns = self.gone, self._starts.turns
        restarted, why = self._starts.judge(seen, self._latest, metrics, gone=was_gone)
        if self._starts.turns and not turns:
            self._say("servers take turns behind this address, as a router's workers do: that is no restart")
        if self._starts.more and not was_gone:
            self.epoch += 1  # nobody knows which of them a probe under way has asked
            self._say("one more server answers there in turn, new or started anew: its cache may be empty")
        self._settle_held(was_gone or restarted is True)
        self._latest = metrics or self._latest
        if was_gone or restarted:
            self._came_back(restarted, why)
        return ""

    def _went_away(self, since_s: float, why: str = "") -> None:
        self.epoch += 1
        self._open = Gap(since_s, None, None, "")
        self._brake.gone = GONE
        self._say(f"the server is gone: load and probes wait for it{why}")

    def _came_back(self, restarted: bool | None, why: str) -> None:
        self.epoch += 1
        gone_s = self.gone_s
        if restarted is not False:
            self._on_restart()
        self._end_gap(restarted, why)
        how = {
            True: "it was restarted, its cache is lost",
            False: "it was not restarted",
            None: "whether it was restarted cannot be told; its cache counts as lost",
        }[restarted]
        self._say(f"the same server again after {gone_s:.1f} s: {how} ({why})")

    def _end_gap(self, restarted: bool | None, words: str) -> None:
        now = self._clock()
        began = self._open.began_s if self._open is not None else now
        self._gone_before += now - began
        if len(self.gaps) < 1000:  # a server that comes and goes for a week
            self.gaps.append(Gap(began, now, restarted, words))
        self._open = None
        self._brake.gone = None

    def _settle_held(self, lost: bool) -> None:
        held, self._held = self._held, []
        for seen in held:
            self._settle(seen, lost)
