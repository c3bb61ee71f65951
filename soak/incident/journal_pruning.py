"""What the journal lets go of: the oldest rows first, in small steps, and never what an incident holds on to.

An incident holds its window. Where windows take more room than all the rest, the oldest one is given up but
for its own victim and passes, and that is said; the incident itself stays.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from soak.incident.journal_file import JournalFile

STEP_ROWS = 1000
LATE_US = 600_000_000  # no request outlives its sending by more
_LOOK_EVERY_US = 5_000_000


@dataclass(frozen=True, slots=True)
class Keep:
    """How much the journal keeps: bytes and microseconds. What an incident keeps: before_us before its probe
    and before its victim was written, after_us after the alarm; all between the two if that is no longer than
    window_us and no more than most_prompts."""

    bytes: int = 2 << 30
    age_us: int = 7 * 86_400_000_000
    window_us: int = 600_000_000
    before_us: int = 15_000_000
    after_us: int = 3_000_000
    most_prompts: int = 20_000


class Pruner:
    """One step at a time, in the thread that writes. front_us: what finished before may be gone."""

    def __init__(self, file: JournalFile, keep: Keep) -> None:
        self._file, self._keep = file, keep
        self._db: sqlite3.Connection = file.db
        self._cursor = 0  # every prompt up to here is gone, or held by an incident
        self._held_below = 0  # how many are held up to there
        self._looked_us = 0
        self._stale = True
        self._ranges: list[tuple[int, int]] = []
        self._pinned: set[int] = set()
        self._held_probes: set[tuple[int, int]] = set()
        self.front_us = 0

    def look_again(self) -> None:
        """Incidents have changed."""
        self._stale = True

    def used_bytes(self) -> int:
        """Bytes in use inside the file; free pages, which the next rows fill, do not count."""
        with self._file.in_words():
            pages, free, size = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)

    def step(self, now_us: int) -> list[str]:
        """Delete at most a few rows; sentences for people. Raises JournalUnusable."""
        over = self.used_bytes() > self._keep.bytes
        if not over and now_us - self._looked_us < _LOOK_EVERY_US:
            return []
        self._looked_us = now_us
        before_cursor = self._cursor
        with self._file.in_words():
            if self._stale:
                self._learn_incidents()
            said = self._give_up_a_window(now_us) if over else []
            before_us = now_us if over else now_us - self._keep.age_us
            with self._file.transaction():
                self._prompts(before_us)
                for table, column in (("probes", "finished_us"), ("server", "at_us"), ("deeds", "began_us")):
                    self._others(table, column)
            if over:
                self._db.execute("PRAGMA incremental_vacuum(256)").fetchall()
        if self._cursor - before_cursor >= STEP_ROWS:
            self._looked_us = 0  # there is more where that came from
        return said

    def _learn_incidents(self) -> None:
        self._ranges, self._held_probes = [], set()
        rows = self._db.execute("SELECT ranges, session, alarm, released_us FROM incidents").fetchall()
        for ranges, session, alarm, released_us in rows:
            if released_us is None:
                self._ranges += [(int(low), int(high)) for low, high in json.loads(ranges)]
            if session is not None:
                self._held_probes |= {(session, number) for number in json.loads(alarm)["probes"]}
        self._held_probes |= {
            (session, number)
            for session, number in self._db.execute(
                "SELECT session, number FROM incidents WHERE number IS NOT NULL"
            )
        }
        self._pinned = {seq for (seq,) in self._db.execute("SELECT seq FROM pins")}
        self._stale = False

    def _held(self, finished_us: int, took_us: int) -> bool:
        return any(low <= finished_us and finished_us - took_us <= high for low, high in self._ranges)

    def _prompts(self, before_us: int) -> None:
        rows = self._db.execute(
            "SELECT seq, finished_us, took_us FROM prompts WHERE seq > ? ORDER BY seq LIMIT ?",
            (self._cursor, STEP_ROWS),
        ).fetchall()
        gone = []
        for seq, finished_us, took_us in rows:
            if finished_us >= before_us:
                break
            if seq in self._pinned or self._held(finished_us, took_us):
                self._held_below += 1
            else:
                gone.append((seq,))
            self._cursor = seq
            self.front_us = max(self.front_us, finished_us)
        self._db.executemany("DELETE FROM prompts WHERE seq = ?", gone)

    def _others(self, table: str, column: str) -> None:
        """Probes and words of the server from before the front."""
        session = "session, number" if table == "probes" else "0, 0"
        rows = self._db.execute(
            f"SELECT rowid, {column}, {session} FROM {table} WHERE {column} < ? "  # noqa: S608 - constants
            f"ORDER BY {column} LIMIT ?",
            (self.front_us, STEP_ROWS),
        ).fetchall()
        gone = [
            (row,)
            for row, at_us, session, number in rows
            if (session, number) not in self._held_probes and not self._held(at_us, 0)
        ]
        self._db.executemany(f"DELETE FROM {table} WHERE rowid = ?", gone)  # noqa: S608

    def _give_up_a_window(self, now_us: int) -> list[str]:
        """Where incidents hold more than there is besides, the oldest window goes."""
        last = self._db.execute("SELECT max(seq) FROM prompts").fetchone()[0] or 0
        if self._held_below <= max(STEP_ROWS, last - self._cursor):
            return []
        row = self._db.execute(
            "SELECT id, session, number FROM incidents WHERE released_us IS NULL AND complete = 1 "
            "ORDER BY raised_us LIMIT 1"
        ).fetchone()
        if row is None:
            return []
        name, session, number = row
        with self._file.transaction() as db:
            pin_essentials(db, name, session, number)
            db.execute("UPDATE incidents SET released_us = ? WHERE id = ?", (now_us, name))
        self._cursor = self._held_below = 0
        self._learn_incidents()
        return [
            f"journal: full of the windows of incidents: that of incident {name} is given up but for its "
            "own passes and victim. Export incidents that are to be kept, or raise journal.bytes"
        ]


def pin_essentials(db: sqlite3.Connection, incident: str, session: int | None, number: int | None) -> None:
    """Hold on to the passes of an incident's own probe and to the prompts that wrote its victim."""
    row = db.execute(
        "SELECT facts FROM probes WHERE session = ? AND number = ?", (session, number)
    ).fetchone()
    victim = json.loads(row[0]).get("victim", [-1, 0, 0]) if row else [-1, 0, 0]
    db.execute(
        "INSERT OR IGNORE INTO pins SELECT ?1, seq FROM prompts WHERE session = ?2 "
        "AND ((origin = 1 AND idx = ?3) OR (origin = 0 AND idx = ?4 AND step <= ?5))",
        (incident, session, number, victim[0], victim[1]),
    )
