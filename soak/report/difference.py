"""Two runs beside each other, as before and after an upgrade of the server. Pure: runs in, plain data out.

It never decides what a run says: verdicts are the runs' own. A figure counts as different only where a test
says so at ``LEVEL`` after the adjustment for all tests made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.export.closing import alarm_names
from soak.export.course import Course
from soak.export.quantiles import LogSketch
from soak.report.chance import adjusted, rank_test, share_test
from soak.report.incidents import flat
from soak.report.run_folder import RunOnDisk
from soak.report.timeline import stretches

LEVEL = 0.01
_MOST_VALUES = 200_000  # of one sketch; more would make nothing surer
_STRETCHES = 40
_WORSE = {"CLEAN": 0, "CALIBRATING": 1, "VACUOUS": 1, "SUSPECT": 2, "CORRUPT": 3}
_RANKS_OF_PROBES = "rank test (Mann-Whitney)"
_RANKS_OF_TIME = "rank test over stretches of time"
_SHARES = "exact test (Fisher)"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs. unit: nats, s or share; of_a, of_b: from how many values.

    p: of the test, adjusted for all tests made, None where there was too little to test. worse: whether b's
    is the worse one, whatever the test says.
    """

    what: str
    unit: str
    a: float | None
    b: float | None
    of_a: int
    of_b: int
    test: str
    p: float | None
    worse: bool

    @property
    def differs(self) -> bool:
        """More than chance."""
        return self.p is not None and self.p < LEVEL


@dataclass(frozen=True, slots=True)
class Difference:
    """All of it. alarms: of a and of b, one line for each; server, config: one line for each value that
    differs, a's first; only_a, only_b: conjunctions that one run alone reached."""

    verdicts: tuple[str, str]
    same_plan: bool
    alarms: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    server: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def worse_verdict(self) -> bool:
        """Whether b's verdict is the worse one."""
        a, b = (_WORSE.get(verdict, 1) for verdict in self.verdicts)
        return b > a

    @property
    def says_something(self) -> bool:
        """Whether both runs came to a verdict about the cache."""
        return all(_WORSE.get(verdict, 1) != 1 for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {
            "worse_verdict": self.worse_verdict,
            "says_something": self.says_something,
            "figures": [asdict(each) | {"differs": each.differs} for each in self.figures],
        }


def compare(a: RunOnDisk, b: RunOnDisk) -> Difference:
    """What differs. Raises KeyError, TypeError or ValueError for a summary that is not as a run writes it."""
    figures = [*_shares(a, b), *_of_courses(a.course, b.course)]
    ps = adjusted([figure.p for figure in figures])
    reached_a, reached_b = _reached(a), _reached(b)
    return Difference(
        (str(a.summary["verdict"]), str(b.summary["verdict"])),
        all(a.summary[name] == b.summary[name] for name in ("seed", "spec_digest")),
        (_alarms(a), _alarms(b)),
        _lines(a.summary["fingerprint"], b.summary["fingerprint"]),
        _lines(a.config, b.config, without=("run.",)),
        tuple(
            Figure(f.what, f.unit, f.a, f.b, f.of_a, f.of_b, f.test, p, f.worse)
            for f, p in zip(figures, ps, strict=True)
        ),
        tuple(sorted(reached_a - reached_b)),
        tuple(sorted(reached_b - reached_a)),
        tuple(f"{run.folder}: {run.why}: no test of it can be made" for run in (a, b) if run.course is None),
    )


def _reached(run: RunOnDisk) -> set[str]:
    return {str(e["name"]) for e in run.summary["coverage"] if e["state"] in ("presumed", "confirmed")}


def _alarms(run: RunOnDisk) -> tuple[str, ...]:
    return tuple(sorted(alarm_names(run.summary), key=lambda name: not name.startswith("CORRUPT")))


def _lines(a: Mapping[str, Any], b: Mapping[str, Any], without: tuple[str, ...] = ()) -> tuple[str, ...]:
    ours, theirs = dict(flat(dict(a))), dict(flat(dict(b)))
    return tuple(
        f"{name}: {ours.get(name, 'not there') or 'none'} -> {theirs.get(name, 'not there') or 'none'}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name) and not name.startswith(without or ("\0",))
    )


def _shares(a: RunOnDisk, b: RunOnDisk) -> Iterable[Figure]:
    """Counts out of counts."""
    for what, counted, more_is_worse in (
        ("bit-exact probes", _exact, False),
        ("valid probes", _valid, False),
        ("prompts sent", _delivered, False),
        ("answers that failed", _failed, True),
    ):
        (hits_a, of_a), (hits_b, of_b) = counted(a.summary), counted(b.summary)
        share_a, share_b = hits_a / of_a if of_a else None, hits_b / of_b if of_b else None
        worse = share_a is not None and share_b is not None and share_a != share_b
        worse = worse and (share_b > share_a) == more_is_worse  # type: ignore[operator]
        yield Figure(
            what,
            "share",
            share_a,
            share_b,
            of_a,
            of_b,
            _SHARES,
            share_test(hits_a, of_a, hits_b, of_b),
            worse,
        )


def _exact(summary: Mapping[str, Any]) -> tuple[int, int]:
    seen = [shape["probe"] for shape in summary["divergence"].values()]
    return sum(s["bit_exact"] for s in seen), sum(s["count"] for s in seen)


def _valid(summary: Mapping[str, Any]) -> tuple[int, int]:
    probes = summary["probes"]
    return probes["valid"], probes["total"] - probes["victims_evicted"]


def _delivered(summary: Mapping[str, Any]) -> tuple[int, int]:
    return summary["load"]["delivered"], summary["load"]["asked"]


def _failed(summary: Mapping[str, Any]) -> tuple[int, int]:
    outcomes = summary["load"]["outcomes"]
    fine = sum(count for name, count in outcomes.items() if name in ("ok", "aborted"))
    return sum(outcomes.values()) - fine, sum(outcomes.values())


def _of_courses(a: Course | None, b: Course | None) -> Iterable[Figure]:
    """Figures whose whole distribution was kept."""
    if a is None or b is None:
        return
    for kind in sorted(a.kinds.keys() & b.kinds.keys()):
        for of, words in (
            ("control", "noise floor, resumes from {}"),
            ("cold_repeat", "cold passes repeated, beside resumes from {}"),
            ("probe", "divergence of probes, resumes from {}"),
        ):
            seen = a.kinds[kind].scores[of], b.kinds[kind].scores[of]
            yield _ranked(words.format(kind), "nats", seen, (_values(seen[0]), _values(seen[1])))
    lost_a, lost_b = _merged(a.amnesia.values()), _merged(b.amnesia.values())
    if lost_a is not None and lost_b is not None:
        yield _ranked("amnesia", "share", (lost_a, lost_b), (_values(lost_a), _values(lost_b)))
    for name, what in (("latency", "latency, median"), ("ttft", "time to first token, median")):
        whole = [_merged(getattr(held, name) for held in course.bins.values()) for course in (a, b)]
        if whole[0] is not None and whole[1] is not None:
            medians = _medians(a, name), _medians(b, name)
            yield _ranked(what, "s", (whole[0], whole[1]), medians, _RANKS_OF_TIME)


def _ranked(
    what: str,
    unit: str,
    of: tuple[LogSketch, LogSketch],
    values: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    test: str = _RANKS_OF_PROBES,
) -> Figure:
    """A figure by its median, tested by the ranks of the values of both runs; more is worse."""
    a, b = values
    first, second = (sketch.quantile(0.5) if sketch.count else None for sketch in of)
    worse = bool(a.size and b.size and float(np.mean(b)) > float(np.mean(a)))
    if first is not None and second is not None and first != second:
        worse = second > first
    return Figure(what, unit, first, second, int(a.size), int(b.size), test, rank_test(a, b), worse)


def _values(sketch: LogSketch) -> npt.NDArray[np.float64]:
    """A value for each that was counted: its bucket, which is ordered as the values are."""
    buckets = sketch.as_dict()["buckets"]
    if not buckets:
        return np.empty(0)
    places, counts = np.array(buckets, dtype=np.int64).T
    if counts.sum() > _MOST_VALUES:
        counts = np.maximum(1, counts * _MOST_VALUES // counts.sum())
    return np.repeat(places.astype(np.float64), counts)


def _merged(sketches: Iterable[LogSketch]) -> LogSketch | None:
    whole: LogSketch | None = None
    for sketch in sketches:
        if whole is None:
            whole = LogSketch(
                sketch.lowest, sketch.highest, relative_error=sketch.relative_error, signed=sketch.signed
            )
        whole.merge(sketch)
    return whole if whole is not None and whole.count else None


def _medians(course: Course, name: str) -> npt.NDArray[np.float64]:
    """Of each stretch of time its median: answers that were under way together are not independent."""
    held = [getattr(each, name) for _, each in stretches(course, _STRETCHES)[0]]
    return np.array([sketch.quantile(0.5) for sketch in held if sketch.count], dtype=np.float64)
