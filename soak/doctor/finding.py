"""Lines of a report: what was looked at, how it stands, and what to do about it. Plain data, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
"""Raised when a key of the JSON report goes away or changes its meaning; new keys do not raise it."""


class Mark(enum.StrEnum):
    """How one line stands."""

    OK = "ok"
    WARN = "warn"  # a soak can run; a person should know
    UNKNOWN = "unknown"  # it matters, and was not or could not be told
    BAD = "bad"  # a soak would be useless, or would hurt somebody


class State(enum.StrEnum):
    """How the server stands: the worst of its lines."""

    READY = "ready"
    UNFIT = "unfit"
    PARTLY = "partly"
    UNUSABLE = "unusable"  # not reached, not open to us, or nothing that can be soaked


@dataclass(frozen=True, slots=True)
class Line:
    """name: what was looked at, stable for scripts; words: how it stands; step: what to do, if anything."""

    name: str
    mark: Mark
    words: str
    step: str = ""

    def as_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return {"name": self.name, "mark": self.mark.value, "words": self.words, "next": self.step}


@dataclass(frozen=True, slots=True)
class Group:
    """Lines that belong together."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found. facts: plain values beside the lines, for scripts; steps: what to type next."""

    url: str
    groups: tuple[Group, ...]
    steps: tuple[str, ...]
    usable: bool = True
    facts: dict[str, Any] = field(default_factory=dict)

    def marked(self, mark: Mark) -> list[Line]:
        """The lines that stand so, in their order."""
        return [line for group in self.groups for line in group.lines if line.mark is mark]

    @property
    def state(self) -> State:
        """The worst of the lines."""
        if not self.usable:
            return State.UNUSABLE
        if self.marked(Mark.BAD):
            return State.UNFIT
        return State.PARTLY if self.marked(Mark.UNKNOWN) else State.READY

    def as_dict(self, exit_code: int) -> dict[str, Any]:
        """The JSON report, as docs/doctor.md describes it."""
        return {
            "schema": SCHEMA,
            "url": self.url,
            "state": self.state.value,
            "exit_code": exit_code,
            "groups": [
                {"title": group.title, "lines": [line.as_dict() for line in group.lines]}
                for group in self.groups
            ],
            "next": list(self.steps),
            **self.facts,
        }


def ok(name: str, words: str) -> Line:
    """All is well, or simply so."""
    return Line(name, Mark.OK, words)


def warn(name: str, words: str, step: str) -> Line:
    """Worth knowing, with what to do about it."""
    return Line(name, Mark.WARN, words, step)


def unknown(name: str, words: str, step: str) -> Line:
    """Not told, with how it can be."""
    return Line(name, Mark.UNKNOWN, words, step)


def bad(name: str, words: str, step: str) -> Line:
    """In the way of a soak, with what to do first."""
    return Line(name, Mark.BAD, words, step)


def group(title: str, lines: Iterable[Line | None]) -> Group:
    """A group of the lines that are there."""
    return Group(title, tuple(line for line in lines if line is not None))
