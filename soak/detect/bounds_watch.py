"""Alarms of the channels that need no calibration: ceilings, the declared bound, the control floor.

It counts hits over a stream's probes and puts the alarm into words. It never looks at evidence.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from soak.detect.ceilings import (
    AMNESIA,
    AMNESIA_CEILING,
    DECLARED,
    HITS,
    ONSET_CEILING,
    WINDOW,
    CeilingWindow,
    Hit,
    ceiling_figure,
    ceilings_over,
    confirmed,
    declared_hit,
    hit_state,
    over_declared,
)
from soak.detect.evidence import shape_of
from soak.detect.verdict import Alarm, Verdict
from soak.oracle.probe import ProbeResult


class BoundsWatch:
    """Ceilings per stream, the declared bound over all streams."""

    def __init__(self, max_abs_d: float | None) -> None:
        self._bound = max_abs_d
        self._windows: dict[str, CeilingWindow] = {}
        self._declared: dict[str, list[Hit]] = {}
        self._latched: dict[str, Verdict] = {}
        self.unrepeated = 0  # probes over a ceiling that count for nothing, as no cold pass was repeated

    def wants_repeat(self, result: ProbeResult) -> str:
        """Why a confirming pair is wanted for a valid probe, empty if it is not."""
        if over_declared(result, self._bound) and not self._done(DECLARED, result.stream):
            size = result.divergence.max_abs if result.divergence is not None else 0.0
            return f"max |d| {size:.3g} is over the declared bound {self._bound:g}"
        for ceiling in ceilings_over(result):
            if not self._done("ceiling", result.stream):
                return f"{ceiling}: {ceiling_figure(result, ceiling):.3g} is over {_bound_of(ceiling):g}"
        return ""

    def observe(self, result: ProbeResult) -> list[Alarm]:
        """Take one valid probe in; the alarms it comes to."""
        alarms = []
        stream = result.stream
        window = self._windows.get(stream)
        if window is None:
            window = self._windows[stream] = CeilingWindow()
        ceilings = ceilings_over(result)
        if ceilings and result.cold_repeat is None and not self._done("ceiling", stream):
            self.unrepeated += 1
        hits = window.add(result, ceilings)
        if hits:
            channel = Counter(hit.channel for hit in hits).most_common(1)[0][0]
            what = f"of the last {WINDOW} valid probes of the stream"
            alarms += self._raise("ceiling", channel, stream, hits, what)
        hit = declared_hit(result, self._bound)
        if hit is not None:
            own = self._declared.setdefault(result.stream, [])
            own.append(hit)
            del own[:-WINDOW]
            every = sorted((h for held in self._declared.values() for h in held), key=lambda h: h.probe)
            first = not any(
                key.startswith(DECLARED) and v is Verdict.CORRUPT for key, v in self._latched.items()
            )
            if len(own) >= HITS:
                alarms += self._raise(DECLARED, DECLARED, result.stream, own, "of this stream")
            elif first and len(every) >= HITS:
                name = Counter(h.stream for h in every).most_common(1)[0][0]
                alarms += self._raise(DECLARED, DECLARED, name, every, "of all streams")
        return alarms

    def _done(self, family: str, stream: str) -> bool:
        return self._latched.get(f"{family} {stream}") is Verdict.CORRUPT

    def _raise(self, family: str, channel: str, stream: str, hits: list[Hit], what: str) -> list[Alarm]:
        verdict = Verdict.CORRUPT if confirmed(hits) else Verdict.SUSPECT
        key = f"{family} {stream}"
        if self._latched.get(key) in (verdict, Verdict.CORRUPT):
            return []
        self._latched[key] = verdict
        bound = self._bound if channel == DECLARED else _bound_of(channel)
        figures = ", ".join(f"{hit.figure:.3g}" for hit in hits[-HITS:] if hit.channel == channel)
        shown = sum(1 for hit in hits if hit.shows)
        made = sum(1 for hit in hits if hit.shows is not None)
        pairs = (
            f"{shown} of {made} confirming pairs showed it again"
            if made
            else "no confirming pair could be made"
        )
        less = "" if verdict is Verdict.CORRUPT else ", hence no more than SUSPECT"
        evidence = (
            f"{_words(channel)} over {bound:g} on {len(hits)} {what}, latest {figures}; on each of them the "
            f"cold pass was repeated and stood; {pairs}{less}"
        )
        return [Alarm(verdict, channel, stream, shape_of(stream), evidence, tuple(hit.probe for hit in hits))]

    def forget(self, stream: str) -> None:
        """Count a stream afresh; its alarms may be raised again."""
        self._windows.pop(stream, None)
        self._declared.pop(stream, None)
        self._latched.pop(f"ceiling {stream}", None)
        self._latched.pop(f"{DECLARED} {stream}", None)

    def state(self) -> dict[str, Any]:
        """Plain values for ``restore``."""
        return {
            "bound": self._bound,
            "windows": {stream: window.state() for stream, window in self._windows.items()},
            "declared": {stream: [hit_state(hit) for hit in held] for stream, held in self._declared.items()},
            "latched": {key: verdict.value for key, verdict in self._latched.items()},
            "unrepeated": self.unrepeated,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` gave, without hits of another declared bound than the one in force."""
        self._windows = {stream: CeilingWindow.restored(held) for stream, held in state["windows"].items()}
        self._latched = {key: Verdict(verdict) for key, verdict in state["latched"].items()}
        self.unrepeated = state["unrepeated"]
        self._declared = {}
        if state["bound"] == self._bound:
            self._declared = {s: [Hit(*values) for values in held] for s, held in state["declared"].items()}


def _bound_of(ceiling: str) -> float:
    return AMNESIA_CEILING if ceiling == AMNESIA else ONSET_CEILING


def _words(channel: str) -> str:
    if channel == DECLARED:
        return "max |d|"
    return "amnesia" if channel == AMNESIA else "median |d| of the first 16 tokens"
