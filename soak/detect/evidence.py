"""The tolerance channels of all streams: from scores to e-values to an alarm. It never calibrates.

Absolute and magnitude share one sum over streams, which can make CORRUPT; the paired channel keeps a sum of
its own, which alone can make SUSPECT only.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any

from soak.detect.calibration import SCORE_MAX, Bounds, magnitude
from soak.detect.edetector import SHARES, EDetector, log_bet, log_total
from soak.detect.verdict import Alarm, Verdict

ABSOLUTE = "absolute"
MAGNITUDE = "magnitude"
PAIRED = "paired"

ABSOLUTE_WEIGHT = 0.8
MAGNITUDE_WEIGHT = 1.0 - ABSOLUTE_WEIGHT
"""Weights within a stream. The bound m0 of the magnitude channel is that of an unknown tail, so it finds loud
faults only, and those within a few probes more."""

CONTRIBUTES = math.log(0.1)
"""A stream with this share (ln) of the sum has a part in the alarm, and its confirming pairs count for it."""

EXCURSION_OVER = math.log(100.0)
"""Evidence back under this: what had been seen before belongs to no later alarm."""

KEPT_HITS = 20


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one probe says, stripped of everything but what evidence needs. Kept while a kind is calibrating.

    pair_score, cold_score: of the confirming warm pass, and of its cold pass, each None where not made.
    """

    number: int
    stream: str
    score: float
    pair_score: float | None = None
    cold_score: float | None = None


@dataclass(frozen=True, slots=True)
class _Hit:
    number: int
    score: float
    shows: bool | None


def hit_bar(bounds: Bounds) -> float:
    """The score over which a probe speaks against the server in either channel."""
    return min(bounds.tau, bounds.m0 * SCORE_MAX)


def shows_again(sighting: Sighting, bounds: Bounds) -> bool | None:
    """Whether the confirming pair shows it and its cold pass stood; None without a pair."""
    if sighting.pair_score is None:
        return None
    bar = hit_bar(bounds)
    return sighting.pair_score > bar and (sighting.cold_score is None or sighting.cold_score <= bar)


@cache
def _log_exceedance(exceeds: bool, p0: float) -> tuple[float, ...]:
    return log_bet(float(exceeds), p0)


def log_e_values(score: float, bounds: Bounds) -> tuple[float, ...]:
    """ln e-values of the absolute channel, then of the magnitude channel, each against every share."""
    return _log_exceedance(score > bounds.tau, bounds.p0) + log_bet(magnitude(score), bounds.m0)


class Evidence:
    """Sums over streams, and the alarms they come to."""

    def __init__(self, run_length: float) -> None:
        shares = len(SHARES)
        self.log_bar = math.log(run_length)
        self.main = EDetector([ABSOLUTE_WEIGHT / shares] * shares + [MAGNITUDE_WEIGHT / shares] * shares)
        self.paired = EDetector([1.0 / shares] * shares)
        self._hits: dict[str, deque[_Hit]] = {}
        self._probes: dict[str, int] = {}
        self._alarmed: dict[str, Verdict] = {}
        self._paired_alarmed: set[str] = set()

    def _named(self, stream: str, own: float, total: float) -> str:
        """The stream that an alarm would be about, empty if there is none to raise.

        The sum decides the first alarm. While that one stands the sum stays over the bar, so a further stream
        has to reach it by itself.
        """
        if own >= self.log_bar:
            name = stream
        elif total >= self.log_bar and Verdict.CORRUPT not in self._alarmed.values():
            name = max(self.main.streams(), key=self.main.log_stream, default=stream)
        else:
            return ""
        return "" if self._alarmed.get(name) is Verdict.CORRUPT else name

    def reaches_bar(self, stream: str, score: float, bounds: Bounds) -> bool:
        """Whether this probe speaks against the server and would bring its evidence to the bar, or keep it
        there.

        Then a confirming pair is wanted.
        """
        if score <= hit_bar(bounds):
            return False
        own, total = self.main.peek(stream, log_e_values(score, bounds))
        return own >= total + CONTRIBUTES and self._named(stream, own, total) != ""

    def take(self, sighting: Sighting, bounds: Bounds) -> Alarm | None:
        """Take one probe in; the alarm that it comes to, if it does."""
        stream = sighting.stream
        self.main.update(stream, log_e_values(sighting.score, bounds))
        hits = self._hits.setdefault(stream, deque(maxlen=KEPT_HITS))
        if sighting.score <= hit_bar(bounds):
            if hits:
                self._probes[stream] += 1
                if self.main.log_stream(stream) < min(EXCURSION_OVER, 0.5 * self.log_bar):
                    hits.clear()
                    self._probes[stream] = 0
            return None
        self._probes[stream] = self._probes.get(stream, 0) + 1
        hits.append(_Hit(sighting.number, sighting.score, shows_again(sighting, bounds)))
        total = self.main.log_sum()
        name = self._named(stream, self.main.log_stream(stream), total)
        return self._alarm(name, total, bounds) if name else None

    def _alarm(self, name: str, total: float, bounds: Bounds) -> Alarm | None:
        parts = [s for s in self.main.streams() if self.main.log_stream(s) >= total + CONTRIBUTES]
        hits = [hit for part in parts for hit in self._hits.get(part, ())]
        shown = [hit.number for hit in hits if hit.shows]
        unshown = [hit.number for hit in hits if hit.shows is False]
        verdict = Verdict.CORRUPT if shown else Verdict.SUSPECT
        if self._alarmed.get(name) is verdict:
            return None
        self._alarmed[name] = verdict
        components = self.main.log_components(name)
        shares = len(SHARES)
        loud = log_total(components[shares:]) > log_total(components[:shares])
        own_hits = self._hits.get(name, deque())
        scores = [hit.score for hit in own_hits]
        if shown:
            pair = f"confirmed by a second warm and cold pair (probe {shown[-1]})"
        elif unshown:
            pair = (
                f"the confirming pair did not show it again (probe {unshown[-1]}), hence no more than SUSPECT"
            )
        else:
            pair = "no confirming pair could be made, hence no more than SUSPECT"
        with_others = (
            f"; {len(parts)} streams have a part in it: {', '.join(sorted(parts))}" if parts[1:] else ""
        )
        return Alarm(
            verdict=verdict,
            channel=MAGNITUDE if loud else ABSOLUTE,
            stream=name,
            shape=shape_of(name),
            evidence=(
                f"ln evidence of all streams {total:.1f}, of this one {self.main.log_stream(name):.1f} (bar "
                f"{self.log_bar:.1f}); {len(own_hits)} of its latest {self._probes.get(name, 0)} probes over "
                f"the threshold {bounds.tau:.3g} (a healthy one: at most {bounds.p0:.2g} of them), scores up "
                f"to {max(scores, default=math.nan):.3g}; {pair}{with_others}"
            ),
            probes=tuple(hit.number for hit in own_hits),
        )

    def take_pair(self, number: int, stream: str, worse: bool, share: float) -> Alarm | None:
        """Take in whether a probe looked worse than its control; ``share`` is the largest healthy chance of
        it.
        """
        self.paired.update(stream, _log_exceedance(worse, share))
        if not worse:
            return None
        total = self.paired.log_sum()
        if total < self.log_bar:
            return None
        own = self.paired.log_stream(stream)
        name = stream if own >= self.log_bar else max(self.paired.streams(), key=self.paired.log_stream)
        if name in self._paired_alarmed or (own < self.log_bar and self._paired_alarmed):
            return None
        self._paired_alarmed.add(name)
        return Alarm(
            verdict=Verdict.SUSPECT,
            channel=PAIRED,
            stream=name,
            shape=shape_of(name),
            evidence=(
                f"probes look worse than their own controls more often than {share:.2f} of the time: ln "
                f"evidence {total:.1f} over all streams, {self.paired.log_stream(name):.1f} of this one (bar "
                f"{self.log_bar:.1f}); this channel alone proves no corruption"
            ),
            probes=(number,),
        )

    def channels(self) -> dict[str, dict[str, float]]:
        """ln of the weighted evidence by stream and channel."""
        shares = len(SHARES)
        seen: dict[str, dict[str, float]] = {}
        for stream in self.main.streams():
            parts = self.main.log_components(stream)
            seen[stream] = {
                ABSOLUTE: log_total(parts[:shares]),
                MAGNITUDE: log_total(parts[shares:]),
            }
        for stream in self.paired.streams():
            seen.setdefault(stream, {})[PAIRED] = self.paired.log_stream(stream)
        return seen

    def restart(self, kind: str) -> None:
        """Fresh evidence for all streams of a resume kind; alarms that were raised stay raised."""
        for stream in {*self.main.streams(), *self.paired.streams()}:
            if stream.endswith(f"/{kind}"):
                self._drop(stream)

    def _drop(self, stream: str) -> None:
        self.main.forget(stream)
        self.paired.forget(stream)
        self._hits.pop(stream, None)
        self._probes.pop(stream, None)

    def forget(self, stream: str) -> None:
        """Fresh evidence for a stream in every channel; its alarms may be raised again."""
        self._drop(stream)
        self._alarmed.pop(stream, None)
        self._paired_alarmed.discard(stream)

    def state(self) -> dict[str, Any]:
        """Plain values for ``restore``."""
        return {
            "main": self.main.state(),
            "paired": self.paired.state(),
            "hits": {s: [[h.number, h.score, h.shows] for h in hits] for s, hits in self._hits.items()},
            "probes": dict(self._probes),
            "alarmed": {stream: verdict.value for stream, verdict in self._alarmed.items()},
            "paired_alarmed": sorted(self._paired_alarmed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` gave, in place of everything held."""
        self.main.restore(state["main"])
        self.paired.restore(state["paired"])
        self._hits = {s: deque((_Hit(*hit) for hit in held), KEPT_HITS) for s, held in state["hits"].items()}
        self._probes = dict(state["probes"])
        self._alarmed = {stream: Verdict(verdict) for stream, verdict in state["alarmed"].items()}
        self._paired_alarmed = set(state["paired_alarmed"])


def shape_of(stream: str) -> str:
    """The shape that a stream's name, shape/bucket/kind, begins with."""
    return stream.rsplit("/", 2)[0]
