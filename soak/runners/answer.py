"""What a check says of one known fault, and the words it may use. Data only."""

from __future__ import annotations

from dataclasses import dataclass

FIXED = "fixed"
VULNERABLE = "vulnerable"
NOT_APPLICABLE = "not applicable"
UNKNOWN = "unknown"
STATES = (FIXED, VULNERABLE, NOT_APPLICABLE, UNKNOWN)

FINGERPRINT_FIELD = "runner_fix."
"""With a fault's name behind it, the field of a fingerprint that holds its state."""

COMPLETE = "complete"
PARTIAL = "partial"
DEAD = "dead"
ABSENT = "absent"
FIXES = (COMPLETE, PARTIAL, DEAD, ABSENT, "")
"""How much of a fix is there: half of one counts as none, and one that nothing reaches is dead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One check's answer.

    state: one of STATES; fix: one of FIXES, empty where the state is not about a fix; because: one sentence
    for a person; where: what was looked at, each ``path`` or ``path:line`` below the package.
    """

    state: str
    fix: str
    because: str
    where: tuple[str, ...]


def fixed(because: str, *where: str) -> Answer:
    """The whole fix is there and can be reached."""
    return Answer(FIXED, COMPLETE, because, where)


def vulnerable(because: str, *where: str, fix: str = ABSENT) -> Answer:
    """The faulty code is there, and no whole fix that can be reached."""
    return Answer(VULNERABLE, fix, because, where)


def not_applicable(because: str, *where: str) -> Answer:
    """What the fault needs is not in this release."""
    return Answer(NOT_APPLICABLE, "", because, where)


def unknown(because: str, *where: str) -> Answer:
    """The code is not where or not what the check knows: a person has to look, and learns where."""
    return Answer(UNKNOWN, "", because, where)
