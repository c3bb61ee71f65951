"""The course of a run: what it looked like over time, by token offset and by depth. What a report draws.

Memory and file stay small however long the run: time is kept in at most ``MOST_BINS`` equal bins, which are
joined two by two when they run out, and everything else in sketches. It judges nothing and keeps no token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.detect.verdict import DetectorReport
from soak.drive.observation import Observation
from soak.export.quantiles import LogSketch
from soak.oracle.amnesia import Amnesia
from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeResult

SCHEMA = 1
MOST_BINS = 240
FIRST_BIN_S = 1.0
OFFSETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
"""First token after the resume boundary of each group of offsets; a group reaches to the next one."""

_MOST_KINDS = 32
_MOST_CELLS = 400  # of amnesia by depth and length: 20 powers of two each
_BIN_COUNTS = ("asked", "delivered", "valid", "invalid")
_BIN_LAST = ("verdict", "log_sum", "log_paired", "log_bar", "gone")
_BIN_MOST = ("in_flight", "max_abs")


def _seconds() -> LogSketch:
    return LogSketch(1e-4, 1e4, relative_error=0.05)


def _nats() -> LogSketch:
    return LogSketch(1e-9, 1e3, relative_error=0.05)


def _ratio() -> LogSketch:
    return LogSketch(1e-3, 1e2, relative_error=0.05, signed=True)


@dataclass(slots=True)
class Bin:
    """A stretch of the run. asked, delivered, valid, invalid: counts inside it; the rest as it ended.

    in_flight, max_abs (nats, of probes): the largest inside it; latency, ttft: seconds, of answers inside it.
    """

    values: dict[str, Any] = field(default_factory=dict)
    latency: LogSketch = field(default_factory=_seconds)
    ttft: LogSketch = field(default_factory=_seconds)

    def add(self, name: str, count: int) -> None:
        """Count more of something."""
        self.values[name] = self.values.get(name, 0) + count

    def most(self, name: str, value: float) -> None:
        """Keep the largest."""
        self.values[name] = max(self.values.get(name, 0), value)

    def join(self, later: Bin) -> None:
        """Take in the bin that follows."""
        for name in _BIN_COUNTS:
            if name in later.values:
                self.add(name, later.values[name])
        for name in _BIN_MOST:
            if name in later.values:
                self.most(name, later.values[name])
        for name in _BIN_LAST:
            if name in later.values:
                self.values[name] = later.values[name]
        self.latency.merge(later.latency)
        self.ttft.merge(later.ttft)

    def beside(self, other: Bin) -> None:
        """Take in what another process did at the same time."""
        flying = self.values.get("in_flight", 0) + other.values.get("in_flight", 0)
        gone = bool(self.values.get("gone") or other.values.get("gone"))
        sums = [seen["log_sum"] for seen in (self.values, other.values) if "log_sum" in seen]
        self.join(other)
        self.values |= {"in_flight": flying, "gone": gone} | ({"log_sum": max(sums)} if sums else {})

    def as_dict(self) -> dict[str, Any]:
        """Plain values; sketches that counted nothing are left out."""
        sketches = {"latency": self.latency, "ttft": self.ttft}
        return {**self.values, **{name: s.as_dict() for name, s in sketches.items() if s.count}}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Bin:
        """What ``as_dict`` gave. Raises ValueError, TypeError or KeyError."""
        made = cls({name: said[name] for name in (*_BIN_COUNTS, *_BIN_MOST, *_BIN_LAST) if name in said})
        for name in ("latency", "ttft"):
            if name in said:
                getattr(made, name).merge(LogSketch.from_dict(said[name]))
        return made


class ByKind:
    """Of one resume kind: |d| by offset and the score of each comparison, for probes and for controls."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[int, LogSketch]] = {"probe": {}, "control": {}}
        self.scores: dict[str, LogSketch] = {"probe": _nats(), "control": _nats(), "cold_repeat": _nats()}

    def add(self, what: str, seen: Divergence, off: npt.NDArray[np.float64]) -> None:
        """One comparison; ``off``: warm minus cold from one past the resume boundary, shape (T,)."""
        self.scores[what].add(seen.score)
        for place, first in enumerate(OFFSETS):
            end = OFFSETS[place + 1] if place + 1 < len(OFFSETS) else math.inf
            group = np.abs(off[first - 1 : None if end == math.inf else int(end) - 1])
            if not group.size:
                return
            self.offsets[what].setdefault(first, _nats()).add_many(group)

    def join(self, other: ByKind) -> None:
        """Take in another's."""
        for what, groups in other.offsets.items():
            for first, sketch in groups.items():
                self.offsets[what].setdefault(first, _nats()).merge(sketch)
        for what, sketch in other.scores.items():
            self.scores[what].merge(sketch)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "offsets": {
                what: {str(first): sketch.as_dict() for first, sketch in groups.items()}
                for what, groups in self.offsets.items()
            },
            "scores": {what: sketch.as_dict() for what, sketch in self.scores.items()},
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> ByKind:
        """What ``as_dict`` gave. Raises ValueError, TypeError or KeyError."""
        made = cls()
        for what, groups in made.offsets.items():
            for first, sketch in said["offsets"][what].items():
                if int(first) not in OFFSETS:
                    raise ValueError(f"no group of offsets begins at {first}")
                groups[int(first)] = LogSketch.from_dict(sketch)
        for what, mine in made.scores.items():
            mine.merge(LogSketch.from_dict(said["scores"][what]))
        return made


class Course:
    """Fed by the run as it goes; ``sample`` is called a few times a second with times from its start."""

    def __init__(self) -> None:
        self.width_s = FIRST_BIN_S
        self.bins: dict[int, Bin] = {}
        self.kinds: dict[str, ByKind] = {}
        self.amnesia: dict[tuple[int, int], LogSketch] = {}
        self.amnesia_undefined: dict[tuple[int, int], int] = {}
        self._now_s = 0.0
        self._before: dict[str, int] = {}
        self._sealed: dict[int, dict[str, Any]] = {}  # bins that are over, as plain values

    # What the run tells it

    def observe_load(self, seen: Observation) -> None:
        """The times of one ok answer, in the bin of now."""
        current = self._bin()
        current.latency.add(max(0.0, seen.latency_s))
        if seen.ttft_s is not None:
            current.ttft.add(max(0.0, seen.ttft_s))

    def observe_probe(self, result: ProbeResult) -> None:
        """One probe."""
        current = self._bin()
        current.add("valid" if result.valid else "invalid", 1)
        if not result.valid or result.divergence is None:
            return
        current.most("max_abs", min(result.divergence.max_abs, 1e3))
        kind = self._kind(result.kind.value)
        kind.add("probe", result.divergence, result.warm - result.cold)
        if result.control is not None:
            kind.add("control", result.control, result.control_off)
        if result.cold_repeat is not None:
            kind.scores["cold_repeat"].add(result.cold_repeat.score)
        if result.amnesia is not None:
            self._forgot(result.resume_boundary, result.victim_tokens, result.amnesia)

    def observe_control(self, kind: str, seen: Divergence, off: npt.NDArray[np.float64]) -> None:
        """A control that was made without a probe."""
        self._kind(kind).add("control", seen, off)

    def _forgot(self, depth: int, length: int, seen: Amnesia) -> None:
        """Depth: the resume boundary; length: of the prefix. Both in tokens, kept as powers of two."""
        cell = (1 << max(0, depth.bit_length() - 1), 1 << max(0, length.bit_length() - 1))
        if cell not in self.amnesia and len(self.amnesia) >= _MOST_CELLS:
            return
        sketch = self.amnesia.setdefault(cell, _ratio())
        if seen.ratio is None:
            self.amnesia_undefined[cell] = self.amnesia_undefined.get(cell, 0) + 1
        else:
            sketch.add(seen.ratio)

    def sample(
        self,
        at_s: float,
        report: DetectorReport,
        *,
        verdict: str,
        asked: int,
        delivered: int,
        in_flight: int,
        gone: bool,
    ) -> None:
        """How things stand ``at_s`` seconds after the start; asked and delivered are totals of this process.

        Time that went backwards counts as none.
        """
        self._now_s = max(self._now_s, at_s)
        current = self._bin()
        for name, total in (("asked", asked), ("delivered", delivered)):
            current.add(name, max(0, total - self._before.get(name, 0)))
            self._before[name] = total
        current.most("in_flight", in_flight)
        current.values["verdict"] = verdict
        current.values["gone"] = gone
        for name, value in (
            ("log_sum", report.log_sum),
            ("log_paired", report.log_sum_paired),
            ("log_bar", report.log_bar if report.log_bar > 0.0 else None),
        ):
            if value is not None and math.isfinite(value):
                current.values[name] = value

    def another_server(self) -> None:
        """Totals begin anew with the next sample."""
        self._before.clear()

    def beside(self, other: Course, later_s: float) -> None:
        """Take in the course of another process of the same run, which began ``later_s`` after this one.

        ``other`` is spent by it. Where both were at work, counts and what was in flight add up.
        """
        while self.width_s < other.width_s:
            self._halve()
        while other.width_s < self.width_s:
            other._halve()
        later = round(max(0.0, later_s) / self.width_s)
        while max(other.bins, default=0) + later >= MOST_BINS:
            self._halve()
            other._halve()
            later = round(max(0.0, later_s) / self.width_s)
        for place, held in other.bins.items():
            mine = self.bins.get(place + later)
            if mine is None:
                self.bins[place + later] = held
            else:
                mine.beside(held)
        self._sealed.clear()
        for name, kind in other.kinds.items():
            self._kind(name).join(kind)
        for cell, sketch in other.amnesia.items():
            self.amnesia.setdefault(cell, _ratio()).merge(sketch)
            lost = self.amnesia_undefined.get(cell, 0) + other.amnesia_undefined.get(cell, 0)
            self.amnesia_undefined[cell] = lost

    def _bin(self) -> Bin:
        place = int(self._now_s / self.width_s)
        while place >= MOST_BINS:
            self._halve()
            place = int(self._now_s / self.width_s)
        if place not in self.bins:
            self.bins[place] = Bin()
        return self.bins[place]

    def _halve(self) -> None:
        joined: dict[int, Bin] = {}
        for place in sorted(self.bins):
            if place // 2 in joined:
                joined[place // 2].join(self.bins[place])
            else:
                joined[place // 2] = self.bins[place]
        self.bins = joined
        self.width_s *= 2
        self._sealed.clear()

    def _kind(self, name: str) -> ByKind:
        if name not in self.kinds and len(self.kinds) >= _MOST_KINDS:
            raise ValueError(f"more than {_MOST_KINDS} resume kinds")
        return self.kinds.setdefault(name, ByKind())

    # How it reaches the disk

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which the course changes no more."""
        present = max(self.bins, default=0)
        for place, held in self.bins.items():
            if place != present and place not in self._sealed:
                self._sealed[place] = held.as_dict()
        bins = [
            [place, self._sealed[place] if place != present else self.bins[place].as_dict()]
            for place in sorted(self.bins)
        ]
        return {
            "schema": SCHEMA,
            "width_s": self.width_s,
            "bins": bins,
            "kinds": {name: held.as_dict() for name, held in self.kinds.items()},
            "amnesia": [
                [*cell, sketch.as_dict(), self.amnesia_undefined.get(cell, 0)]
                for cell, sketch in sorted(self.amnesia.items())
            ],
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Course:
        """What ``as_dict`` gave, to look at or to go on with. Raises ValueError, TypeError or KeyError."""
        if said["schema"] != SCHEMA:
            raise ValueError(f"a course of schema {said['schema']}, and this soak reads {SCHEMA}")
        made = cls()
        made.width_s = float(said["width_s"])
        if not (made.width_s >= FIRST_BIN_S and len(said["bins"]) <= MOST_BINS):
            raise ValueError(f"{len(said['bins'])} bins of {made.width_s} s")
        for place, held in said["bins"]:
            if not 0 <= place < MOST_BINS:
                raise ValueError(f"there is no bin {place}")
            made.bins[int(place)] = Bin.from_dict(held)
        for name, held in said["kinds"].items():
            made._kind(str(name))
            made.kinds[str(name)] = ByKind.from_dict(held)
        for depth, length, sketch, undefined in said["amnesia"][:_MOST_CELLS]:
            made.amnesia[int(depth), int(length)] = LogSketch.from_dict(sketch)
            made.amnesia_undefined[int(depth), int(length)] = int(undefined)
        return made
