"""A report for people, in lines that can be read in half a minute. Shows nothing but what the report says."""

from __future__ import annotations

import textwrap

from soak.doctor.finding import Line, Mark, Report, State

_SHOWN = {Mark.OK: "ok", Mark.WARN: "warn", Mark.UNKNOWN: "?", Mark.BAD: "BAD"}
_WORDS = {
    State.READY: "READY for a soak",
    State.UNFIT: "NOT READY",
    State.PARTLY: "PARTLY known",
    State.UNUSABLE: "CANNOT be soaked",
}
_NAMES = 14  # columns for a line's name
_MARKS = 5


def page(report: Report, width: int = 110) -> str:
    """All lines, groups in the order of the report, and the steps last, where the eye ends up."""
    parts = [headline(report)]
    for group in report.groups:
        parts += ["", group.title]
        for line in group.lines:
            parts += _line(line, width)
    parts += ["", f"{_WORDS[report.state]}. Next:"]
    parts += [f"  {printable(step)}" for step in report.steps]
    return "\n".join(parts)


def headline(report: Report) -> str:
    """The address and how it stands, in one line."""
    counts = [
        f"{n} {word}{'s' if n > 1 and word == 'warning' else ''}"
        for mark, word in ((Mark.BAD, "bad"), (Mark.UNKNOWN, "unknown"), (Mark.WARN, "warning"))
        if (n := len(report.marked(mark)))
    ]
    return printable(f"{report.url}: {', '.join([_WORDS[report.state], *counts])}")


def _line(line: Line, width: int) -> list[str]:
    head = f"  {_SHOWN[line.mark]:<{_MARKS}}{printable(line.name):<{_NAMES}} "
    indent = " " * (2 + _MARKS + _NAMES + 1)
    shown = textwrap.wrap(
        printable(line.words),
        max(width, 60),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if line.step:
        shown += textwrap.wrap(
            printable(line.step),
            max(width, 60),
            initial_indent=f"{indent}-> ",
            subsequent_indent=f"{indent}   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return shown or [head.rstrip()]


def printable(text: str) -> str:
    """What a server says may hold anything: no control characters on somebody's terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
