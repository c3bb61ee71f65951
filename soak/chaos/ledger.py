"""What is in force, on the disk before it is: so that whoever comes later can undo what a dead process left.

One file per experiment, one JSON line per change, each synced before the call returns. A torn last line
is of something that had not begun, or of an end that nobody knows of, which is then undone once more. It
holds no key: where keys are is named. The process that owns a file holds its lock; who gets it finds nobody.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from soak.store.lock import NotLocked, lock_beside

FOLDER_ENV = "SOAK_CHAOS_LEDGER"
_MOST_BYTES = 64 << 20

CONTINUE, START, ABORT, NOTHING = "continue", "start", "abort", "nothing"


class LedgerUnusable(Exception):
    """A ledger cannot be read or written; the message says why and what to do."""


def ledger_folder() -> Path:
    """Where ledgers lie unless told otherwise: the same for every command of one user."""
    if given := os.environ.get(FOLDER_ENV):
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "soak" / "chaos"


@dataclass(frozen=True, slots=True)
class Undo:
    """How to undo something.

    how: continue (a pause); start (a server that was taken down: ``argv`` is run, unless it comes up by
    itself within ``wait_s``); abort (what our rids left, by the trail in ``out``); nothing (it ends with its
    process).
    """

    how: str
    url: str = ""
    api_key_env: str = ""
    api_key_file: str = ""
    argv: tuple[str, ...] = ()
    within_s: float = 60.0
    wait_s: float = 0.0
    out: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that was written down as in force. began_s: seconds since 1970."""

    number: int
    what: str
    target: str
    undo: Undo
    began_s: float


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file says: whose it is, and what is still in force, in the order in which it began."""

    path: Path
    experiment: str
    pid: int
    began_s: float
    in_force: tuple[Entry, ...]


class Ledger:
    """An open ledger, ours from its making until ``close``. Raises LedgerUnusable."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self.path = folder / f"{experiment}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = lock_beside(self.path, "a ledger")
            self._file = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except (OSError, NotLocked) as error:
            raise LedgerUnusable(
                f"{folder}: {error}. Without a ledger nothing may be done that has to be undone: name "
                f"another folder in {FOLDER_ENV}"
            ) from error
        self._number = 0
        self._open: dict[int, Entry] = {}
        self._write({"experiment": experiment, "pid": os.getpid(), "began_s": time.time()})
        _sync_folder(folder)

    def begin(self, what: str, target: str, undo: Undo) -> int:
        """On the disk from here on. Raises LedgerUnusable: then it must not be done."""
        self._number += 1
        entry = Entry(self._number, what, target, undo, time.time())
        self._write({"begin": self._number, **asdict(entry)})
        self._open[self._number] = entry
        return self._number

    def end(self, number: int) -> None:
        """No longer in force."""
        self._open.pop(number, None)
        self._write({"end": number})

    @contextmanager
    def holding(self, what: str, target: str, undo: Undo) -> Iterator[None]:
        """In force while inside; it stays written down if the block fails, since nobody knows then."""
        number = self.begin(what, target, undo)
        yield
        self.end(number)

    @property
    def in_force(self) -> tuple[Entry, ...]:
        """What is, in the order in which it began."""
        return tuple(self._open.values())

    def close(self) -> None:
        """Let go of it. The file goes, unless something is left to undo."""
        if not self._open:
            self.path.unlink(missing_ok=True)
        os.close(self._file)
        os.close(self._lock)
        if not self._open:
            _lock_of(self.path).unlink(missing_ok=True)

    def _write(self, said: dict[str, Any]) -> None:
        line = orjson.dumps(said) + b"\n"
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(0, "only a part of a line was written")
            os.fsync(self._file)
        except OSError as error:
            raise LedgerUnusable(f"{self.path}: {error.strerror}: what is in force cannot be kept") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def read_ledger(path: Path) -> Kept:
    """What a ledger says. Raises LedgerUnusable."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise LedgerUnusable(f"{path}: too large for a ledger")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise LedgerUnusable(f"{path}: {error.strerror}") from error
    head: dict[str, Any] = {}
    open_: dict[int, Entry] = {}
    for place, line in enumerate(lines):
        try:
            said = orjson.loads(line)
            if "begin" in said:
                undo = Undo(**{**said["undo"], "argv": tuple(said["undo"]["argv"])})
                entry = Entry(said["number"], said["what"], said["target"], undo, said["began_s"])
                open_[entry.number] = entry
            elif "end" in said:
                open_.pop(said["end"], None)
            else:
                head = said
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            if place == len(lines) - 1:
                break  # torn: what it was to say had not been said yet
            raise LedgerUnusable(f"{path}: line {place + 1} is damaged: {error}") from error
    return Kept(
        path,
        str(head.get("experiment", "")),
        int(head.get("pid", 0)),
        float(head.get("began_s", 0.0)),
        tuple(open_.values()),
    )


def ledgers(folder: Path) -> list[Path]:
    """All files of a folder, oldest first."""
    return sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []


def owned(path: Path) -> bool:
    """Whether a living process has it."""
    try:
        lock = lock_beside(path, "a ledger")
    except NotLocked:
        return True
    os.close(lock)
    return False


@contextmanager
def taken_over(path: Path) -> Iterator[Kept]:
    """A dead process's ledger, ours while inside. Raises LedgerUnusable for one that is owned, or damaged."""
    try:
        lock = lock_beside(path, "a ledger")
    except NotLocked as error:
        raise LedgerUnusable(str(error)) from error
    try:
        yield read_ledger(path)
    finally:
        os.close(lock)


def forget(path: Path, numbers: list[int]) -> None:
    """Write down that these were undone; the file goes with its last entry. Only while it is taken over."""
    with path.open("r+b") as file:
        whole = file.read().rpartition(b"\n")[0]
        file.truncate(len(whole) + 1)  # a torn line would not be the last one any more
        file.seek(len(whole) + 1)
        for number in numbers:
            file.write(orjson.dumps({"end": number}) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not read_ledger(path).in_force:
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            _lock_of(path).unlink()
