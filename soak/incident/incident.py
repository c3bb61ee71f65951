"""Incidents: a latched alarm with the probe that shows it best and the time around it that the journal holds.

The alarm's id is the incident's. Opening one reads a few rows and writes one; it sends nothing.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from soak.detect.verdict import Alarm, Verdict
from soak.incident.journal_file import JournalFile
from soak.incident.journal_pruning import LATE_US, Keep, pin_essentials
from soak.store.alarms import StoredAlarm, utc

_MOST_NUMBERS = 500  # of an alarm's probes, the latest that are looked at
_COMPLETE_US = 2_000_000  # after the end of the window, when all that was in flight has been written

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Incident:
    """One alarm and what the journal holds of it. Times in microseconds since 1970.

    session, number: the probe that shows it; None where the journal knows none, and then there is no trace.
    A number below 0 is a load prompt that was an alarm by itself. ranges: what is held of the time around it.
    complete: the window is over. released_us: when the window was given up for want of room, None if not.
    """

    id: str
    fingerprint: str
    raised_us: int
    alarm: Alarm
    session: int | None
    number: int | None
    ranges: tuple[Range, ...]
    complete: bool
    released_us: int | None
    note: str

    @property
    def raised_at(self) -> str:
        """When, in ISO 8601."""
        return utc(self.raised_us / 1e6)


_COLUMNS = "id, fingerprint, raised_us, alarm, session, number, ranges, complete, released_us, note"
SELECT_INCIDENTS = f"SELECT {_COLUMNS} FROM incidents"  # noqa: S608 - constants


def incident_of(row: tuple[Any, ...]) -> Incident:
    """A row of SELECT_INCIDENTS. Raises ValueError or KeyError for a damaged one."""
    name, fingerprint, raised_us, alarm, session, number, ranges, complete, released_us, note = row
    said = json.loads(alarm)
    return Incident(
        name,
        fingerprint,
        raised_us,
        Alarm(
            Verdict(said["verdict"]),
            said["channel"],
            said["stream"],
            said["shape"],
            said["evidence"],
            tuple(said["probes"]),
        ),
        session,
        number,
        tuple((int(low), int(high)) for low, high in json.loads(ranges)),
        bool(complete),
        released_us,
        note,
    )


def open_incident(db: sqlite3.Connection, stored: StoredAlarm, keep: Keep) -> None:
    """Write an alarm down as an incident, inside the caller's transaction; one that is there stays so."""
    raised_us = round(stored.raised_s * 1e6)
    session, number, row = _case(db, stored, raised_us)
    ranges, note = _ranges(db, session, row, raised_us, keep)
    alarm = stored.alarm
    db.execute(
        f"INSERT OR IGNORE INTO incidents ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, 0, NULL, ?)",  # noqa: S608
        (
            stored.id,
            stored.fingerprint,
            raised_us,
            json.dumps(asdict(alarm) | {"verdict": alarm.verdict.value}),  # takes any words of a server
            session,
            number,
            orjson.dumps(ranges).decode(),
            note,
        ),
    )
    if session is not None:
        numbers = {*alarm.probes[-_MOST_NUMBERS:], number}
        db.executemany(
            "UPDATE probes SET suspicious = 1 WHERE session = ? AND number = ?",
            [(session, each) for each in numbers],
        )


# session, number, started_us, finished_us, facts, whether its arrays are there
_Probe = tuple[int, int, int, int, dict[str, Any], bool]


def _case(
    db: sqlite3.Connection, stored: StoredAlarm, raised_us: int
) -> tuple[int | None, int | None, _Probe | None]:
    """The probe that shows an alarm best: the latest of those at least half as far off as the furthest."""
    found = _candidates(db, stored, raised_us)
    if not found:
        return None, None, None
    session = found[0][0]  # the latest
    mine = [probe for probe in found if probe[0] == session]
    mine = [probe for probe in mine if probe[5]] or mine
    furthest = max(_score(probe) for probe in mine)
    best = next(probe for probe in mine if _score(probe) >= furthest / 2)
    return session, best[1], best


def _candidates(db: sqlite3.Connection, stored: StoredAlarm, raised_us: int) -> list[_Probe]:
    """Probes of an alarm, latest first; of its stream where it names none."""
    alarm = stored.alarm
    numbers = [number for number in alarm.probes if number > 0][-_MOST_NUMBERS:]
    select = (
        "SELECT p.session, p.number, p.started_us, p.finished_us, p.facts, p.arrays IS NOT NULL "
        "FROM probes p JOIN sessions s ON s.id = p.session WHERE s.fingerprint = ? AND p.started_us <= ? "
    )
    given: tuple[Any, ...] = (stored.fingerprint, raised_us + 1_000_000)
    more: list[Any]
    if numbers:
        marks = ", ".join("?" * len(numbers))
        choice, more = f"AND p.number IN ({marks})", list(numbers)
    elif alarm.probes:  # (0,): no probe but a load prompt
        choice, more = "AND p.number < 0 AND p.stream = ?", [alarm.stream]
    else:  # of controls: a probe of their kind shows it as well
        choice = "AND p.arrays IS NOT NULL AND p.outcome = 'valid' AND p.stream LIKE '%/' || ?"
        more = [alarm.stream.rpartition("/")[2]]
    rows = db.execute(
        f"{select} {choice} ORDER BY p.finished_us DESC LIMIT ?", (*given, *more, _MOST_NUMBERS)
    ).fetchall()
    return [(*row[:4], json.loads(row[4]), bool(row[5])) for row in rows]


def _score(probe: _Probe) -> float:
    """How far off a probe was; a hard alarm is further off than any figure."""
    figures = probe[4].get("divergence")
    return float("inf") if figures is None else float(figures.get("score") or 0.0)


def _ranges(
    db: sqlite3.Connection, session: int | None, probe: _Probe | None, raised_us: int, keep: Keep
) -> tuple[list[Range], str]:
    """What to hold: from the victim's writing to after the alarm, or the two ends of a time too long."""
    if probe is None:
        return [(raised_us - keep.before_us, raised_us + keep.after_us)], "no probe of it is in the journal"
    _, _, started, finished, facts, _ = probe
    end = max(raised_us, finished) + keep.after_us
    start = started - keep.before_us
    index, step, _ = facts.get("victim", (-1, 0, 0))
    row = db.execute(
        "SELECT min(finished_us - took_us), max(finished_us) FROM prompts "
        "WHERE session = ? AND origin = 0 AND idx = ? AND step <= ?",
        (session, index, step),
    ).fetchone()
    if row[0] is None:
        return [(start, end)], "the prompt that wrote the prefix is not in the journal any more"
    written = row[0] - keep.before_us
    count = db.execute(
        "SELECT count(*) FROM prompts WHERE finished_us BETWEEN ? AND ?", (written, end)
    ).fetchone()[0]
    if end - written <= keep.window_us and count <= keep.most_prompts:
        return [(min(written, start), end)], ""
    early = (written, row[1] + keep.after_us)
    if early[1] >= start:
        return [(min(written, start), end)], ""
    return [early, (start, end)], (
        "the time between the writing of the prefix and the probe was too long to be held; only both ends are"
    )


def complete_incidents(file: JournalFile, now_us: int) -> int:
    """Pin what the windows that are over need from outside; how many incidents that completed."""
    rows = file.db.execute("SELECT id, ranges, session, number FROM incidents WHERE complete = 0").fetchall()
    due = [
        (name, [(int(low), int(high)) for low, high in json.loads(ranges)], session, number)
        for name, ranges, session, number in rows
    ]
    due = [entry for entry in due if max(high for _, high in entry[1]) + _COMPLETE_US <= now_us]
    for name, ranges, session, number in due:
        with file.transaction() as db:
            pin_essentials(db, name, session, number)
            for needed in _needed_from_outside(db, ranges):
                db.execute(
                    "INSERT OR IGNORE INTO pins SELECT ?1, seq FROM prompts WHERE session = ?2 "
                    "AND origin = 0 AND idx = ?3 AND step <= ?4",
                    (name, *needed),
                )
            db.execute("UPDATE incidents SET complete = 1 WHERE id = ?", (name,))
    return len(due)


def _needed_from_outside(db: sqlite3.Connection, ranges: list[Range]) -> set[tuple[int, int, int]]:
    """(session, index, step) of load prompts without which ids inside the ranges cannot be made again."""
    needed = set()
    for low, high in ranges:
        for session, origin, index, step, recipe in db.execute(
            "SELECT session, origin, idx, step, recipe FROM prompts WHERE finished_us BETWEEN ? AND ? "
            "AND finished_us - took_us <= ? AND (origin > 0 OR step > 0)",
            (low, high + LATE_US, high),
        ):
            if origin:
                victim = json.loads(recipe)["victim"]
                needed.add((session, victim[0], victim[1]))
            else:
                needed.add((session, index, step - 1))
    return needed
