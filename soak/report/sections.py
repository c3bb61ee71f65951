"""The parts of a report that plots stand in: a question, its answer in a sentence, the plot, the figures.

Text from a run's files goes in as plain ``str`` and is escaped by ``markup``. Decides nothing: a verdict is
the run's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from soak.export.closing import counts, nats, seconds, share
from soak.export.course import OFFSETS, ByKind, Course
from soak.report import plots
from soak.report.markup import Child, Safe, el, join, table
from soak.report.run_folder import RunOnDisk
from soak.report.timeline import stretches

_CEILING = 0.25  # of amnesia, from which on probes count towards an alarm
_MOST_ALARMS = 8
_REACHED = {"presumed": "yes", "confirmed": "yes", "not-applicable": "na"}


def section(anchor: str, question: str, *children: Child) -> Safe:
    """One part of the page."""
    return el("section", el("h2", question), *children, id=anchor)


def figures(*children: Child) -> Safe:
    """What a plot shows, as a table for who wants it."""
    return el("details", el("summary", "The figures"), *children)


def coverage(run: RunOnDisk) -> Safe:
    """Which conjunctions were reached, and what that leaves unsaid."""
    entries, probes = run.summary["coverage"], run.summary["probes"]
    reached = [e for e in entries if e["state"] in ("presumed", "confirmed")]
    missing = [e for e in entries if e["state"] not in ("presumed", "confirmed", "not-applicable")]
    answer = f"{len(reached)} of {len(entries)} conjunctions were reached"
    if missing:
        answer += f"; not {', '.join(e['name'] for e in missing)}"
    blind = sorted({fault for e in missing for fault in e.get("needed_by", ())})
    rows = [
        (
            el("span", e["name"]),
            el("span", e["state"], class_=_REACHED.get(e["state"], "no")),
            f"{e['count']:,}",
            f"{e['probes']:,}",
            e["note"],
        )
        for e in entries
    ]
    valid = f"{probes['valid']:,} of {probes['total']:,} probes compared a warm answer with a cold one"
    if probes["victims_evicted"]:
        valid += f"; {probes['victims_evicted']:,} came too late: what they asked for was not cached any more"
    if probes["invalid"]:
        valid += f"; invalid: {counts(probes['invalid'])}"
    return section(
        "coverage",
        "What was covered, and what was not?",
        el("p", f"{answer}.", class_="answer"),
        el("p", f"{valid}."),
        table(("conjunction", "state", "times reached", "probes of it", "note"), rows, numbers=(2, 3))
        if entries
        else None,
        el("p", f"This run says nothing about: {', '.join(blind)} (`soak explain NAME` says what each is).")
        if blind
        else None,
    )


def divergence(run: RunOnDisk) -> Safe:
    """How far warm answers are from cold ones, and where they begin to be."""
    by_shape = {s: d for s, d in sorted(run.summary["divergence"].items()) if d["probe"]["count"]}
    rows = [
        (
            shape,
            f"{d['probe']['count']:,}",
            f"{d['probe']['bit_exact']:,}",
            nats(d["probe"]["k3"]["median"]),
            nats(d["probe"]["max_abs"]["median"]),
            nats(d["probe"]["max_abs"]["max"]),
            f"{d['control']['count']:,}",
            nats(d["control"]["max_abs"]["max"]),
        )
        for shape, d in by_shape.items()
    ]
    head = ("shape", "probes", "bit-exact", "k3 median", "max |d| median", "max |d| largest", "controls")
    shapes = table((*head, "control max |d|"), rows, numbers=range(1, 8)) if rows else None
    kinds = {} if run.course is None else _probed(run.course)
    if not kinds:
        drawn: Child = [el("p", "No plot: no probe compared anything, or its course was not kept."), shapes]
    else:
        drawn = [
            [el("p", _off(name, kind), class_="answer") for name, kind in sorted(kinds.items())],
            plots.offsets(kinds),
            figures(_offset_table(kinds)),
            el("h3", "By shape, in nats"),
            shapes,
        ]
    return section(
        "divergence",
        "Is the warm answer the cold answer, and from which token on is it not?",
        el(
            "p",
            "A probe scores the same tokens twice, resumed from the cache (warm) and computed anew (cold); d "
            "is the difference of their logprobs. A control does the same with a prefix that was written in "
            "quiet: up to the top of the grey band it is this server's ordinary noise.",
            class_="note",
        ),
        drawn,
    )


def _probed(course: Course) -> dict[str, ByKind]:
    return {name: kind for name, kind in course.kinds.items() if kind.offsets["probe"]}


def _off(name: str, kind: ByKind) -> str:
    first = kind.offsets["probe"].get(1)
    if first is None:
        return f"{name}: no probe scored the first token after the boundary."
    said = f"{name}: at the first token probes are off by {nats(first.quantile(0.5))} nats in the median, "
    said += f"{nats(first.greatest)} at most"
    control = kind.offsets["control"].get(1)
    if control is None:
        return f"{said}; there was no control to compare with."
    said += f"; controls by {nats(control.quantile(0.5))}, {nats(control.greatest)} at most"
    if control.quantile(0.5) > 0.1:
        said += ": controls are off as well, so that the band is no noise"
    return f"{said}."


def _offset_table(kinds: Mapping[str, ByKind]) -> Safe:
    rows = []
    for name, kind in sorted(kinds.items()):
        for what in ("probe", "control"):
            for first, sketch in sorted(kind.offsets[what].items()):
                place = OFFSETS.index(first)
                end = OFFSETS[place + 1] - 1 if place + 1 < len(OFFSETS) else None
                tokens = f"{first}" if end == first else f"{first} to {end}" if end else f"from {first}"
                quantiles = (sketch.quantile(0.5), sketch.quantile(0.9), sketch.greatest)
                rows.append((name, what, tokens, f"{sketch.count:,}", *map(nats, quantiles)))
    head = ("written by", "of", "token", "scored", "median |d|", "nine in ten under", "largest")
    return table(head, rows, numbers=range(2, 7))


def evidence(run: RunOnDisk) -> Safe | None:
    """How the verdict came about over time."""
    detector, course = run.summary["detector"], run.course
    if course is None or not course.bins:
        return None
    times, width_s = stretches(course, 120)
    alarms = []
    for alarm in detector["alarms"]:
        at_s = _since(run, alarm.get("raised_at"))
        if at_s is not None and at_s >= 0:
            alarms.append((at_s, str(alarm.get("id", alarm["channel"]))[:16]))
    strongest, bar = detector["log_sum"], detector["log_bar"]
    if strongest is None:
        answer = (
            "No probe was evidence: until a kind of resume is calibrated, only ceilings and bounds can alarm."
        )
    else:
        answer = (
            f"At the end the evidence is at {strongest:.1f} of {bar:.1f} nats; at the bar it is an alarm."
        )
    if detector["alarms"]:
        answer += f" {len(detector['alarms'])} alarms stand."
    streams = sorted(detector["log_evidence"].items(), key=lambda pair: -(pair[1] or float("-inf")))
    rows = [(stream, "-" if value is None else f"{value:.2f}") for stream, value in streams]
    return section(
        "evidence",
        "When did it turn, and how sure is it?",
        el("p", answer, class_="answer"),
        plots.evidence(times, width_s, alarms[:_MOST_ALARMS]),
        el("p", detector["statement"], class_="note"),
        figures(table(("stream", "evidence at the end, nats"), rows, numbers=(1,))) if rows else None,
    )


def _since(run: RunOnDisk, moment: object) -> float | None:
    """Seconds from the start of the run to a time in ISO 8601."""
    if run.began_s is None or not isinstance(moment, str):
        return None
    try:
        return datetime.fromisoformat(moment).timestamp() - run.began_s
    except ValueError:
        return None


def amnesia(run: RunOnDisk) -> Safe:
    """How much of the far past is forgotten, and how deep."""
    course = run.course
    cells = {
        cell: (sketch.quantile(0.5), sketch.greatest, sketch.count)
        for cell, sketch in (course.amnesia if course is not None else {}).items()
        if sketch.count
    }
    undefined = sum(course.amnesia_undefined.values()) if course is not None else 0
    note = f" {undefined:,} more could not tell: the far context contributed too little." if undefined else ""
    if not cells:
        return section(
            "amnesia",
            "Does a conversation remember its past?",
            el("p", f"No probe could tell.{note}", class_="answer"),
        )
    worst_cell = max(cells, key=lambda cell: cells[cell][1])
    worst = max(0.0, cells[worst_cell][1])
    over = sum(1 for _, largest, _ in cells.values() if largest >= _CEILING)
    count = sum(count for _, _, count in cells.values())
    answer = f"Of {count:,} probes the worst lost {worst:.0%} of what the far context contributes"
    answer += f", after {worst_cell[0]:,} tokens or more." if over else ": it remembers."
    return section(
        "amnesia",
        "Does a conversation remember its past?",
        el("p", answer + note, class_="answer"),
        plots.amnesia(cells, _CEILING),
        el(
            "p",
            "Median / largest share of the far context that was lost, by how deep the server resumed and how "
            f"long the prefix was. From {_CEILING} on (marked !) a probe counts towards an alarm.",
            class_="note",
        ),
    )


def latency(run: RunOnDisk) -> Safe:
    """How long answers took."""
    requests = run.summary["requests"]
    rows = []
    for shape, seen in sorted(requests.items()):
        latencies, first = seen["latency_s"], seen["ttft_s"]
        told = [seconds(f) for f in (latencies["p50"], latencies["p99"], first["p50"], first["p99"])]
        rows.append((shape, *told, counts(seen["outcomes"])))
    late = run.summary["load"]["late_samples"]
    course = run.course
    times, width_s = stretches(course, 40) if course is not None else ([], 1.0)
    there = any(held.latency.count for _, held in times)
    worst = max((seen["latency_s"]["p99"] or 0.0 for seen in requests.values()), default=0.0)
    answer = (
        f"99 in 100 answers of every shape came within {seconds(worst)}."
        if worst
        else "Nothing was answered."
    )
    return section(
        "latency",
        "How long did answers take?",
        el("p", answer if worst else "Nothing was answered.", class_="answer"),
        plots.latency(times, width_s) if there else None,
        table(
            ("shape", "median", "p99", "first token, median", "p99", "outcomes"), rows, numbers=range(1, 5)
        ),
        el("p", f"{late:,} answers that soak itself was late for are in no latency.", class_="note")
        if late
        else None,
    )


def load(run: RunOnDisk) -> Safe:
    """Whether the server got what the plan asked for."""
    said, course = run.summary["load"], run.course
    answer = (
        f"{said['delivered']:,} of {said['asked']:,} prompts were sent ({share(said['delivered_ratio'])})"
    )
    answer += f"; sent late by {seconds(said['schedule_lag_s']['p99'])} at p99."
    if said["undelivered"]:
        answer += f" Not sent: {counts(said['undelivered'])}."
    times, width_s = stretches(course, 80) if course is not None else ([], 1.0)
    gaps = [
        el("li", f"no server from {gap['began_at']} for {seconds(gap['seconds'])}: {_restarted(gap)}")
        for gap in run.summary["gaps"]
    ]
    return section(
        "load",
        "Did the server get the load that was asked for?",
        el("p", answer, class_="answer"),
        plots.load(times, width_s) if times else None,
        el("ul", gaps) if gaps else None,
    )


def _restarted(gap: Mapping[str, Any]) -> str:
    if gap["ended_at"] is None:
        return "to the end"
    told = {True: "restarted", False: "not restarted", None: "restarted or not, it did not tell"}
    return told[gap["restarted"]]


def earlier_servers(run: RunOnDisk) -> Safe | None:
    """Those that answered before the last one, which all other parts are about."""
    before = run.summary.get("earlier_servers") or []
    if not before:
        return None
    rows = [
        (
            s["ended_at"],
            s["verdict"],
            f"{s['probes']['valid']:,} of {s['probes']['total']:,}",
            f"{s['load']['delivered']:,} of {s['load']['asked']:,}",
            join(*(el("div", reason) for reason in s["reasons"])),
        )
        for s in before
    ]
    return section(
        "earlier",
        "Which servers answered before?",
        el(
            "p",
            f"{len(before)} others; all above but plots over time is about the last.",
            class_="answer",
        ),
        table(("until", "verdict", "valid probes", "prompts sent", "why"), rows),
    )
