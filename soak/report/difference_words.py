"""Two runs beside each other, for a terminal. Text only; it decides nothing."""

from __future__ import annotations

import shlex

from soak.export.closing import nats, printable, seconds, share, table, wrapped
from soak.report.difference import LEVEL, Difference, Figure
from soak.report.run_folder import RunOnDisk

_MOST_LINES = 30
_MOST_ALARMS = 8


def difference_words(a: RunOnDisk, b: RunOnDisk, found: Difference) -> str:
    """Lines without trailing newline: verdicts, what is different about the runs, what they measured."""
    parts = [
        [_run("A", a), _run("B", b)],
        _verdicts(found) + _alarms("A", a, found.alarms[0]) + _alarms("B", b, found.alarms[1]),
        _server(found),
        _figures(found),
        _coverage(found),
        [line for note in found.notes for line in wrapped("Note: ", note)],
    ]
    return "\n\n".join("\n".join(printable(line) for line in part) for part in parts if part)


def _run(name: str, run: RunOnDisk) -> str:
    summary = run.summary
    version = summary["fingerprint"].get("version", "of unknown version")
    end = "" if run.ended else ", which did not end"
    lasted = f"{seconds(summary['duration_s'])} from {summary['started_at']}"
    return f"{name}: {run.folder}: SGLang {version}, {lasted}{end}"


def _verdicts(found: Difference) -> list[str]:
    a, b = found.verdicts
    if found.worse_verdict and b in ("SUSPECT", "CORRUPT"):
        return [f"Verdict: {a} -> {b}: worse."]
    if not found.says_something:
        return [
            f"Verdict: {a} -> {b}: one that says nothing about the cache cannot be compared with another."
        ]
    return [f"Verdict: {a} -> {b}: {'the same' if a == b else 'better'}."]


def _alarms(name: str, run: RunOnDisk, alarms: tuple[str, ...]) -> list[str]:
    """What a verdict rests on, and where it is explained."""
    lines = [f"  {name}: {line}" for line in alarms[:_MOST_ALARMS]]
    if len(alarms) > _MOST_ALARMS:
        lines.append(f"  {name}: and {len(alarms) - _MOST_ALARMS} more")
    named = run.summary["incidents"]
    if alarms and named and run.summary["journal"]:
        asked = ["soak", "incidents", "show", str(named[0]), "--out", str(run.folder)]
        lines.append(f"  {name} in words: {shlex.join(asked)}")
    return lines


def _server(found: Difference) -> list[str]:
    lines = ["The server, by its own words" if found.server else "The server is the same, by its own words."]
    lines += [f"  {line}" for line in found.server[:_MOST_LINES]]
    if found.same_plan:
        lines.append("The plan is the same.")
    elif found.config:
        lines += ["The plan is another, so that figures of load may differ for that alone"]
        lines += [f"  {line}" for line in found.config[:_MOST_LINES]]
    else:
        lines += wrapped(
            "",
            "The plan is another (its seed, or the geometry that the server tells); the config is the same.",
        )
    return lines


def _figures(found: Difference) -> list[str]:
    told = [figure for figure in found.figures if figure.a is not None or figure.b is not None]
    if not told:
        return []
    rows = [("", "A", "B", "of A", "of B", "p", "test")]
    rows += [
        (
            figure.what,
            _value(figure, figure.a),
            _value(figure, figure.b),
            f"{figure.of_a:,}",
            f"{figure.of_b:,}",
            "-" if figure.p is None else f"{figure.p:.2g}",
            figure.test if figure.p is not None else "too few to test",
        )
        for figure in told
    ]
    lines = [f"Measured (medians; p adjusted for all {sum(f.p is not None for f in told)} tests by Holm)"]
    lines += table(rows, numbers_to=6)
    differ = [figure for figure in told if figure.differs]
    if not differ:
        return [*lines, f"No figure differs by more than chance (p < {LEVEL:g})."]
    lines.append(f"More than chance (p < {LEVEL:g})")
    for figure in differ:
        how = "worse" if figure.worse else "better"
        a, b = _value(figure, figure.a), _value(figure, figure.b)
        lines.append(f"  {figure.what}: {a} -> {b}, {how} (p {figure.p:.2g}, {figure.test})")
    return lines


def _value(figure: Figure, value: float | None) -> str:
    if figure.unit == "s":
        return seconds(value)
    if value is not None and figure.unit == "share" and figure.what == "amnesia":
        return f"{value:.2f}"
    return share(value) if figure.unit == "share" else nats(value)


def _coverage(found: Difference) -> list[str]:
    lines = []
    if found.only_a:
        lines += wrapped("Reached in A alone: ", ", ".join(found.only_a))
    if found.only_b:
        lines += wrapped("Reached in B alone: ", ", ".join(found.only_b))
    return lines or ["Both reached the same conjunctions."]
