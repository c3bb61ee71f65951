"""The one owner of ``state.sqlite``: its schema, its lock, and every statement that touches it.

A file that is not ours, is damaged, or was written by a newer soak is refused in words and left as it is.
What was committed survives a kill at any moment. It never decides what an alarm means.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from soak.detect.verdict import Alarm, Verdict
from soak.store.alarms import Ack, AckKind, StoredAlarm
from soak.store.lock import NotLocked, lock_beside

APPLICATION_ID = 0x736F616B  # "soak", in the header of the file
SCHEMA_VERSION = 1
_BUSY_S = 10.0
_MAGIC = b"SQLite format 3\0"

_SCHEMA = """
CREATE TABLE evidence (
    fingerprint TEXT NOT NULL,
    version INTEGER NOT NULL,
    probes INTEGER NOT NULL,
    saved_s REAL NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (fingerprint, version)
) STRICT;
CREATE TABLE alarms (
    id TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    raised_s REAL NOT NULL,
    verdict TEXT NOT NULL,
    channel TEXT NOT NULL,
    stream TEXT NOT NULL,
    shape TEXT NOT NULL,
    evidence TEXT NOT NULL,
    probes TEXT NOT NULL,
    ack TEXT,
    acked_s REAL,
    fault TEXT NOT NULL DEFAULT '',
    until_s REAL,
    acked_by TEXT NOT NULL DEFAULT '',
    applied INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX alarms_of ON alarms (fingerprint, raised_s);
"""

_COLUMNS = (
    "id, fingerprint, raised_s, verdict, channel, stream, shape, evidence, probes, "
    "ack, acked_s, fault, until_s, acked_by, applied"
)


class StateUnusable(Exception):
    """The file cannot be used; the message says why and what to do. Nothing in it was changed."""


class UnknownAlarm(Exception):
    """No alarm has that id, or it has been acknowledged already."""


@dataclass(frozen=True, slots=True)
class SavedEvidence:
    """What a detector gave, and the number of probes until then."""

    state: dict[str, Any]
    probes: int


class Store:
    """An open state file, or the same in memory for ``path`` None.

    exclusive: for a run, which owns the evidence; one at a time. Without, the file must exist already, and
    alarms can be read and acknowledged beside a run. Calls must not overlap, from whatever thread they come.
    Raises StateUnusable.
    """

    def __init__(self, path: Path | None, *, exclusive: bool = True) -> None:
        self._path = None if path is None else path.expanduser().resolve()
        self._lock: int | None = None
        if self._path is not None:
            self._refuse_other_files(self._path)
            if exclusive:
                try:
                    self._lock = lock_beside(self._path, "a state file")
                except NotLocked as error:
                    raise StateUnusable(str(error)) from error
            elif not self._path.exists():
                raise StateUnusable(f"{self._path}: there is no such file; `soak run --state` makes it")
        try:
            self._db = self._open()
        except BaseException:
            self._unlock()
            raise

    def _refuse_other_files(self, path: Path) -> None:
        """Before even a lock is put beside it: a file that is no database at all."""
        try:
            with path.open("rb") as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateUnusable(f"{path}: {error.strerror}") from error
        if head not in (b"", _MAGIC):
            raise StateUnusable(self._damaged("no SQLite header"))

    def _open(self) -> sqlite3.Connection:
        with self._in_words():
            db = sqlite3.connect(
                self._path or ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._in_words():
                self._examine(db)
        except BaseException:
            db.close()
            raise
        return db

    def _examine(self, db: sqlite3.Connection) -> None:
        """Refuse what is not ours before anything is written."""
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise StateUnusable(
                f"{self._path}: a database of another program; it was left as it is. Name another file"
            )
        if version > SCHEMA_VERSION:
            raise StateUnusable(
                f"{self._path}: written by a newer soak (schema {version}, this one reads {SCHEMA_VERSION}); "
                "it was left as it is. Use that soak, or name another file"
            )
        if tables:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise StateUnusable(self._damaged(found))
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if not tables:
            db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )

    def _damaged(self, why: object) -> str:
        found = " ".join(str(why).split())
        return (
            f"{self._path}: not a state file of soak, or a damaged one ({found}); it was left as it is. "
            "Restore it from a copy, or move it away and calibrate afresh"
        )

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """SQLite's errors as StateUnusable."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StateUnusable(f"{self._path or 'state'}: {error}") from error
        except (sqlite3.Error, orjson.JSONDecodeError) as error:
            raise StateUnusable(self._damaged(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._in_words():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it by itself
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # Evidence

    def load(self, fingerprint: str, version: int) -> SavedEvidence | None:
        """The evidence of that server from a detector of that version; None if there is none."""
        with self._in_words():
            row = self._db.execute(
                "SELECT state, probes FROM evidence WHERE fingerprint = ? AND version = ?",
                (fingerprint, version),
            ).fetchone()
            return None if row is None else SavedEvidence(orjson.loads(row[0]), int(row[1]))

    def other_versions(self, fingerprint: str, version: int) -> list[int]:
        """Versions of detectors, other than that one, whose evidence of this server is kept."""
        with self._in_words():
            rows = self._db.execute(
                "SELECT version FROM evidence WHERE fingerprint = ? AND version <> ? ORDER BY version",
                (fingerprint, version),
            )
            return [int(row[0]) for row in rows]

    def save(
        self,
        fingerprint: str,
        version: int,
        state: bytes,
        *,
        probes: int,
        now_s: float,
        raised: Iterable[StoredAlarm] = (),
        applied: Iterable[str] = (),
    ) -> None:
        """Evidence, new alarms and acknowledgements that it now reflects, all of them or none.

        An alarm whose id is there already is left as it is. Raises StateUnusable.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO evidence VALUES (?, ?, ?, ?, ?)",
                (fingerprint, version, probes, now_s, state),
            )
            db.executemany(
                f"INSERT OR IGNORE INTO alarms ({_COLUMNS}) VALUES ({', '.join('?' * 15)})",  # noqa: S608
                [_row(alarm) for alarm in raised],
            )
            db.executemany("UPDATE alarms SET applied = 1 WHERE id = ?", [(name,) for name in applied])

    # Alarms

    def alarms(self, fingerprint: str | None = None) -> list[StoredAlarm]:
        """All alarms, or those of one server, oldest first."""
        with self._in_words():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM alarms WHERE ?1 IS NULL OR fingerprint = ?1 "  # noqa: S608
                "ORDER BY raised_s, id",
                (fingerprint,),
            )
            return [self._alarm(row) for row in rows]

    def _alarm(self, row: tuple[Any, ...]) -> StoredAlarm:
        name, fingerprint, raised_s, verdict, channel, stream, shape, evidence, probes, *rest = row
        kind, acked_s, fault, until_s, by, applied = rest
        try:
            alarm = Alarm(Verdict(verdict), channel, stream, shape, evidence, tuple(orjson.loads(probes)))
            ack = None if kind is None else Ack(AckKind(kind), acked_s, fault, until_s, by)
        except (ValueError, TypeError) as error:
            raise StateUnusable(self._damaged(f"alarm {name}: {error}")) from error
        return StoredAlarm(name, fingerprint, raised_s, alarm, ack, bool(applied))

    def acknowledge(self, name: str, ack: Ack) -> StoredAlarm:
        """Write down what a person decided on an alarm that stands; the alarm as it is then.

        Raises UnknownAlarm, StateUnusable.
        """
        with self._transaction() as db:
            row = db.execute(f"SELECT {_COLUMNS} FROM alarms WHERE id = ?", (name,)).fetchone()  # noqa: S608
            if row is None:
                raise UnknownAlarm(f"there is no alarm {name}; `soak alarms` lists those there are")
            before = self._alarm(row)
            if not before.stands:
                raise UnknownAlarm(f"alarm {name} was {before.said()} already")
            db.execute(
                "UPDATE alarms SET ack = ?, acked_s = ?, fault = ?, until_s = ?, acked_by = ?, applied = 0 "
                "WHERE id = ?",
                (ack.kind.value, ack.at_s, ack.fault, ack.until_s, ack.by, name),
            )
        return StoredAlarm(before.id, before.fingerprint, before.raised_s, before.alarm, ack)

    def close(self) -> None:
        """Close the file and let another run have it."""
        self._db.close()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _row(stored: StoredAlarm) -> tuple[Any, ...]:
    alarm, ack = stored.alarm, stored.ack
    said = (None, None, "", None, "") if ack is None else (
        ack.kind.value, ack.at_s, ack.fault, ack.until_s, ack.by
    )  # fmt: skip
    return (
        stored.id,
        stored.fingerprint,
        stored.raised_s,
        alarm.verdict.value,
        alarm.channel,
        alarm.stream,
        alarm.shape,
        alarm.evidence,
        orjson.dumps(list(alarm.probes)).decode(),
        *said,
        int(stored.applied),
    )
