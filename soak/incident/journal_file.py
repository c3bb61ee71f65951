"""The journal's file: its schema, who may open it, and what is refused in words and left as it is.

One run writes, under a lock beside the file; anybody may read meanwhile. What a row means is not known here.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soak.store.lock import NotLocked, lock_beside

JOURNAL_NAME = "journal.sqlite"
APPLICATION_ID = 0x736F616A  # "soaj", in the header of the file
SCHEMA_VERSION = 3
_BUSY_S = 10.0
_MAGIC = b"SQLite format 3\0"
_CHECKED_WHOLE = 32 << 20  # bytes; reading a large journal from end to end would hold up the start of a run

# prompts.seq is never given twice: pins and the pruning front go by it, also after all rows have gone
_SCHEMA = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    seed INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    plan_version INTEGER NOT NULL,
    spec_digest TEXT NOT NULL,
    spec TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    fields TEXT NOT NULL,
    config TEXT NOT NULL,
    target TEXT NOT NULL,
    soak_version TEXT NOT NULL,
    started_us INTEGER NOT NULL
) STRICT;
CREATE TABLE progress (
    run_id TEXT NOT NULL,
    shard INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    last_index INTEGER NOT NULL,
    PRIMARY KEY (run_id, shard, shards)
) STRICT, WITHOUT ROWID;
CREATE TABLE prompts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    origin INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    step INTEGER NOT NULL,
    part INTEGER NOT NULL,
    finished_us INTEGER NOT NULL,
    took_us INTEGER NOT NULL,
    lag_us INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT,
    length INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    host INTEGER NOT NULL,
    retractions INTEGER NOT NULL,
    digest BLOB NOT NULL,
    output BLOB NOT NULL,
    namespace TEXT,
    abort_us INTEGER,
    pass TEXT,
    max_new_tokens INTEGER,
    temperature_milli INTEGER,
    start INTEGER,
    recipe TEXT,
    literal BLOB
) STRICT;
CREATE INDEX prompts_of ON prompts (session, origin, idx);
CREATE INDEX prompts_when ON prompts (finished_us);
CREATE TABLE probes (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    finished_us INTEGER NOT NULL,
    stream TEXT NOT NULL,
    outcome TEXT NOT NULL,
    facts TEXT NOT NULL,
    suspicious INTEGER NOT NULL,
    arrays BLOB,
    PRIMARY KEY (session, number)
) STRICT;
CREATE INDEX probes_when ON probes (finished_us);
CREATE TABLE server (
    at_us INTEGER NOT NULL,
    session INTEGER NOT NULL,
    said TEXT NOT NULL
) STRICT;
CREATE INDEX server_when ON server (at_us);
CREATE TABLE incidents (
    id TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    raised_us INTEGER NOT NULL,
    alarm TEXT NOT NULL,
    session INTEGER,
    number INTEGER,
    ranges TEXT NOT NULL,
    complete INTEGER NOT NULL DEFAULT 0,
    released_us INTEGER,
    note TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE pins (
    incident TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (incident, seq)
) STRICT, WITHOUT ROWID;
"""
# since schema 2; a journal of schema 1 gets it when a run next writes there
_DEEDS = """
CREATE TABLE deeds (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    target TEXT NOT NULL,
    began_us INTEGER NOT NULL,
    ended_us INTEGER,
    settings TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (session, number)
) STRICT;
CREATE INDEX deeds_when ON deeds (began_us);
"""


# since schema 3
_DECISIONS = """
CREATE TABLE decisions (
    run_id TEXT NOT NULL,
    first_index INTEGER NOT NULL,
    session INTEGER NOT NULL,
    taken_us INTEGER NOT NULL,
    said TEXT NOT NULL,
    PRIMARY KEY (run_id, first_index)
) STRICT;
"""


class JournalUnusable(Exception):
    """The journal cannot be used; the message says why and what to do. Nothing in it was changed."""


def journal_path(state: Path | None, out: Path) -> Path:
    """Where a run keeps its journal: beside its state file, else in its own folder."""
    return (out if state is None else state.expanduser().resolve().parent) / JOURNAL_NAME


class JournalFile:
    """An open journal. writing: for a run, one at a time; else the file must exist and is only read.

    Calls must not overlap, from whatever thread they come. Raises JournalUnusable.
    """

    def __init__(self, path: Path, *, writing: bool) -> None:
        self.path = path.expanduser().resolve()
        self._lock: int | None = None
        self._refuse_other_files()
        if writing:
            try:
                self._lock = lock_beside(self.path, "a journal")
            except NotLocked as error:
                raise JournalUnusable(str(error)) from error
        elif not self.path.exists():
            raise JournalUnusable(f"{self.path}: there is no such file; `soak run` makes it beside its state")
        try:
            with self.in_words():
                self.db = sqlite3.connect(
                    self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
                )
            try:
                with self.in_words():
                    self._examine(writing)
            except BaseException:
                self.db.close()
                raise
        except BaseException:
            self._unlock()
            raise

    def _refuse_other_files(self) -> None:
        """Before even a lock is put beside it: a file that is no database at all."""
        try:
            with self.path.open("rb") as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalUnusable(f"{self.path}: {error.strerror}") from error
        if head not in (b"", _MAGIC):
            raise JournalUnusable(self._damaged("no SQLite header"))

    def _examine(self, writing: bool) -> None:
        """Refuse what is not ours before anything is written."""
        db = self.db
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise JournalUnusable(
                f"{self.path}: a database of another program; it was left as it is. Name another file"
            )
        if version > SCHEMA_VERSION:
            raise JournalUnusable(
                f"{self.path}: written by a newer soak (schema {version}, this one reads {SCHEMA_VERSION}); "
                "it was left as it is. Use that soak, or name another file"
            )
        if tables and self.path.stat().st_size <= _CHECKED_WHOLE:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise JournalUnusable(self._damaged(found))
        if not writing:
            if not tables:
                raise JournalUnusable(f"{self.path}: empty: no soak has written to it")
            db.execute("PRAGMA query_only = ON")
            return
        if not tables:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        # A commit survives the death of the process; a power cut may cost the last ones, never the file.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {16 << 20}")
        if not tables:
            db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} {_DEEDS} {_DECISIONS} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        elif version < SCHEMA_VERSION:
            missing = f"{_DEEDS if version < 2 else ''} {_DECISIONS}"
            db.executescript(f"BEGIN IMMEDIATE; {missing} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    def _damaged(self, why: object) -> str:
        found = " ".join(str(why).split())
        return (
            f"{self.path}: not a journal of soak, or a damaged one ({found}); it was left as it is. "
            "Restore it from a copy, or move it away: the next run makes a new one"
        )

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """SQLite's errors as JournalUnusable."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise JournalUnusable(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise JournalUnusable(self._damaged(error)) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or none. Raises JournalUnusable."""
        with self.in_words():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
            except BaseException:
                if self.db.in_transaction:  # a full disk has ended it by itself
                    self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")

    def close(self) -> None:
        """Close the file and let another run have it."""
        self.db.close()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def decisions_in(file: JournalFile, run_id: str) -> list[dict[str, Any]]:
    """Rows of the decisions of that run, in their order; none from a soak that took none."""
    with file.in_words():
        if file.db.execute("PRAGMA user_version").fetchone()[0] < 3:
            return []
        rows = file.db.execute(
            "SELECT said FROM decisions WHERE run_id = ? ORDER BY first_index", (run_id,)
        ).fetchall()
    try:
        return [dict(json.loads(said)) for (said,) in rows]
    except (TypeError, ValueError) as error:
        raise JournalUnusable(f"{file.path}: a decision of run {run_id} cannot be read ({error})") from error
