"""Shrinks a trace while it still reproduces: the search's questions, answered by replays, within a budget.

Whoever calls gives the replays; this decides how many a cut needs, keeps what was learnt, and says how far it
is. A cut is kept only if it reproduces about as often as what it was cut from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from soak.incident.about import About
from soak.incident.judge import Judged, Original, Reading, floor_of, judge, judge_by
from soak.incident.readings import Readings, trace_digest
from soak.incident.replay import Repeat
from soak.incident.sequential import Sequential, rate_of
from soak.incident.shrink import shrink
from soak.incident.trace import Trace

FIRST = 2
"""Replays of the whole trace before anything is cut, if each reproduces."""
MOST_FIRST = 12
FINAL = 3
MOST_FINAL = 20
"""Replays of the smallest trace, if none before reproduced."""

Replay = Callable[[Trace, bool], Awaitable[Repeat]]
"""Sends a trace and asks its question; with the flag, also what the noise is measured by."""


class NotReproducedError(Exception):
    """The whole trace did not reproduce: there is nothing to shrink."""


@dataclass(frozen=True, slots=True)
class Minimised:
    """trace: as it went when it last reproduced. reproduced of replays: the final ones, of the smallest cut.

    whole: nothing more could be taken away within the budget; else the budget ended the search.
    """

    trace: Trace
    reproduced: int
    replays: int
    judged: Judged
    whole: bool
    total_replays: int
    seconds: float


class Minimiser:
    """One search. budget_s: seconds of replays, those of earlier attempts among them."""

    def __init__(
        self,
        replay: Replay,
        original: Original,
        readings: Readings,
        *,
        budget_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._replay, self._original, self._readings = replay, original, readings
        self._budget_s, self._say = budget_s, say
        self._refused: set[str] = set()
        self._hit = self._tried = 0.0  # of the present trace and, halved each time, of those before it

    @property
    def _rate(self) -> float:
        return rate_of(self._hit, self._tried)

    async def run(self, whole: Trace) -> Minimised:
        """Shrink. Raises NotReproducedError, ReadingsError; whatever a replay raises comes through."""
        await self._baseline(whole)
        best, ended = whole, True
        search = shrink(whole)
        try:
            candidate = next(search)
            while True:
                held = await self._holds(candidate)
                if held is None:
                    ended = False
                    break
                if held:
                    best = candidate
                    self._progress(whole, best)
                candidate = search.send(held)
        except StopIteration as done:
            best = done.value
        return await self._final(best, ended)

    async def _baseline(self, whole: Trace) -> None:
        """How often the whole trace reproduces, and the noise that all later replays are held against."""
        digest, readings = trace_digest(whole), self._readings
        known: list[Reading] = []
        if readings.floor is not None:
            while (reading := readings.known(digest)) is not None:
                known.append(reading)
        repeats: list[Repeat] = []
        while not known and not _enough([_reading(j) for j in self._judged(repeats)]):
            self._say(f"replay {len(repeats) + 1} of the whole trace: {len(whole.sent)} prompts")
            repeats.append(await self._replay(whole, True))
        if repeats:
            readings.set_floor(*floor_of([r.measured for r in repeats]))
            known = [_reading(judged) for judged in self._judged(repeats)]
            for reading, repeat in zip(known, repeats, strict=True):
                readings.add(digest, reading, repeat.seconds)
        hits = known.count(Reading.REPRODUCED)
        if not hits:
            raise NotReproducedError(f"the whole trace reproduced in none of {len(known)} replays")
        self._hit, self._tried = float(hits), float(len(known))
        self._say(f"the whole trace reproduces in {hits} of {len(known)} replays")

    def _judged(self, repeats: list[Repeat]) -> tuple[Judged, ...]:
        return judge(self._original, [r.measured for r in repeats])

    async def _holds(self, candidate: Trace) -> bool | None:
        """Whether a cut may stay; None when the budget is spent."""
        digest = trace_digest(candidate)
        if digest in self._refused:
            return False
        test = Sequential(self._rate)
        while True:
            reading = self._readings.known(digest)
            if reading is None:
                if self._readings.seconds >= self._budget_s:
                    return None
                repeat = await self._replay(candidate, False)
                reading = _reading(self._by_floor(repeat))
                self._readings.add(digest, reading, repeat.seconds)
            held = test.tell(reading is Reading.REPRODUCED)
            if held is None:
                continue
            if held:
                # a test that stops at its last success flatters the rate, so what was known before counts too
                self._hit = self._hit / 2 + test.reproduced
                self._tried = self._tried / 2 + test.replays
            else:
                self._refused.add(digest)
            return held

    def _by_floor(self, repeat: Repeat) -> Judged:
        readings = self._readings
        return judge_by(self._original, repeat.measured, readings.floor or 0.0, readings.controls_off)

    def _progress(self, whole: Trace, best: Trace) -> None:
        tokens = sum(len(s.ids) + s.max_new_tokens for s in best.sent)
        self._say(
            f"{len(whole.sent)} prompts -> {len(best.sent)} ({tokens} tokens), "
            f"{self._readings.replays} replays, {self._readings.seconds:.0f} s"
        )

    async def _final(self, best: Trace, ended: bool) -> Minimised:
        """The smallest trace once more, with its noise; what goes into the bundle is how it went."""
        repeats: list[Repeat] = []
        while len(repeats) < FINAL or (len(repeats) < MOST_FINAL and not self._hits(repeats)):
            repeats.append(await self._replay(best, True))
        hits = self._hits(repeats)
        if not hits:
            raise NotReproducedError(
                f"a trace of {len(best.sent)} prompts had reproduced, and then in none of {len(repeats)} "
                "replays; run the same command again, or give a larger --budget"
            )
        judged, repeat = max(hits, key=lambda hit: hit[0].score)
        if repeat.played is None:
            raise LookupError("a replay reproduced and has no record of what was sent")
        return Minimised(
            trace=repeat.played,
            reproduced=len(hits),
            replays=len(repeats),
            judged=judged,
            whole=ended,
            total_replays=self._readings.replays + len(repeats),
            seconds=self._readings.seconds + sum(r.seconds for r in repeats),
        )

    def _hits(self, repeats: list[Repeat]) -> list[tuple[Judged, Repeat]]:
        pairs = zip(self._judged(repeats), repeats, strict=True)
        return [(j, r) for j, r in pairs if j.reading is Reading.REPRODUCED]


def _reading(judged: Judged) -> Reading:
    return judged.reading


def _enough(readings: list[Reading]) -> bool:
    hits = readings.count(Reading.REPRODUCED)
    if len(readings) < FIRST:
        return False
    return hits == len(readings) or hits >= FIRST or len(readings) >= MOST_FIRST


def about_minimised(about: About, before: Trace, found: Minimised) -> About:
    """What the new bundle says of itself."""
    least = "nothing more could be taken away" if found.whole else "the budget ended the search"
    note = (
        f"minimised from {len(before.sent)} prompts to {len(found.trace.sent)} by {found.total_replays} "
        f"replays in {found.seconds:.0f} s; {least}; it then reproduced in {found.reproduced} of "
        f"{found.replays}"
    )
    return replace(about, notes=(*about.notes, note))
