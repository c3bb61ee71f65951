"""One run at a time has a file: a lock beside it that the system lets go of, however the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class NotLocked(Exception):
    """The lock is not to be had; the message says why and what to do."""


def lock_beside(path: Path, what: str) -> int:
    """Hold the lock of that file until the returned descriptor is closed. ``what``: a state file, a journal.

    Not on the database itself: closing any other handle of it would drop the locks that SQLite holds.
    Raises NotLocked.
    """
    beside = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise NotLocked(f"{beside}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(lock, 32).decode("ascii", errors="replace").strip()
        os.close(lock)
        raise NotLocked(
            f"{path}: in use by another soak" + (f" (process {holder})" if holder else "") + "; one run "
            f"at a time has {what}. Stop that run, or name another file"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
