"""One file, one owner: what is committed stays, what is not ours is left alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from soak.store.alarms import ack_of
from soak.store.database import SavedEvidence, StateUnusable, Store, UnknownAlarm
from tests.store.test_alarms import FAULT, NOW, stored

STATE = {"version": 1, "books": {}}

# Saves ever new evidence, every tenth time with an alarm, and says what is committed after each.
WRITER = """
import sys
from pathlib import Path
import orjson
from soak.store.database import Store
from tests.store.test_alarms import NOW, stored
store = Store(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    raised = [stored(f"alarm-{number}")] if number % 10 == 0 else []
    state = orjson.dumps({"number": number, "ballast": "x" * 50_000})
    store.save("f", 1, state, probes=number, now_s=NOW, raised=raised)
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state.sqlite"


def save(store: Store, number: int = 1, **more: object) -> None:
    state = orjson.dumps(STATE | {"number": number})
    store.save("f", 1, state, probes=number, now_s=NOW, **more)  # type: ignore[arg-type]


def test_what_is_saved_is_there_for_the_next(path: Path) -> None:
    store = Store(path)
    assert store.load("f", 1) is None
    save(store, 7, raised=[stored("a"), stored("b")])
    save(store, 8)
    store.close()
    again = Store(path)
    assert again.load("f", 1) == SavedEvidence(STATE | {"number": 8}, 8)
    assert again.load("f", 2) is None
    assert again.load("g", 1) is None
    assert again.other_versions("f", 2) == [1]
    assert again.alarms("f") == again.alarms() == [stored("a"), stored("b")]
    assert again.alarms("g") == []
    again.close()


@pytest.mark.parametrize("ack", [{}, {"known": FAULT}, {"until_s": NOW + 9, "by": "ada"}])
def test_acknowledgements_are_kept_and_applied_once(path: Path, ack: dict[str, object]) -> None:
    said = ack_of(now_s=NOW, **ack)  # type: ignore[arg-type]
    store = Store(path)
    save(store, raised=[stored("a")])
    assert store.acknowledge("a", said).ack == said
    (kept,) = store.alarms()
    assert (kept.ack, kept.applied) == (said, False)
    save(store, applied=["a"])
    assert store.alarms()[0].applied
    store.close()


def test_only_what_stands_can_be_acknowledged(path: Path) -> None:
    store = Store(path)
    save(store, raised=[stored("a")])
    with pytest.raises(UnknownAlarm, match="no alarm nope; `soak alarms`"):
        store.acknowledge("nope", ack_of(now_s=NOW))
    store.acknowledge("a", ack_of(now_s=NOW, known=FAULT))
    store.acknowledge("a", ack_of(now_s=NOW, by="ada"))
    with pytest.raises(UnknownAlarm, match="was acknowledged by ada at 2027-01-15T08:00:00Z already"):
        store.acknowledge("a", ack_of(now_s=NOW))
    store.close()


def test_evidence_and_alarms_are_written_together_or_not_at_all(path: Path) -> None:
    store = Store(path)
    save(store, 1)
    sqlite = sqlite3.connect(path)
    sqlite.execute("CREATE TRIGGER full BEFORE INSERT ON alarms BEGIN SELECT RAISE(ABORT, 'full'); END")
    sqlite.commit()
    with pytest.raises(StateUnusable, match="full"):
        save(store, 2, raised=[stored("a")])
    sqlite.execute("DROP TRIGGER full")
    sqlite.commit()
    sqlite.close()
    kept = store.load("f", 1)
    assert kept is not None and kept.probes == 1
    save(store, 3, raised=[stored("a")])
    assert len(store.alarms()) == 1
    store.close()


def test_one_run_at_a_time_and_people_beside_it(path: Path) -> None:
    store = Store(path)
    save(store, raised=[stored("a")])
    with pytest.raises(StateUnusable, match=rf"in use by another soak \(process {os.getpid()}\)"):
        Store(path)
    beside = Store(path, exclusive=False)
    beside.acknowledge("a", ack_of(now_s=NOW))
    beside.close()
    assert not store.alarms()[0].stands
    save(store, 2)
    store.close()
    Store(path).close()


def test_the_same_file_by_another_name_is_the_same_file(path: Path) -> None:
    store = Store(path)
    link = path.parent / "link.sqlite"
    link.symlink_to(path)
    with pytest.raises(StateUnusable, match="in use"):
        Store(link)
    store.close()


def test_in_memory_nothing_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    save(store, raised=[stored("a")])
    assert store.load("f", 1) is not None and len(store.alarms()) == 1
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_people_do_not_make_files(path: Path) -> None:
    with pytest.raises(StateUnusable, match="no such file"):
        Store(path, exclusive=False)
    assert not path.exists()


def foreign(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()


def newer(path: Path) -> None:
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.commit()
    db.close()


def text(path: Path) -> None:
    path.write_text("run:\n  duration: 8h\n" * 100)


def damaged(path: Path) -> None:
    store = Store(path)
    for number in range(40):
        state = orjson.dumps({"x": "y" * 5000})
        store.save(f"f{number}", 1, state, probes=1, now_s=NOW, raised=[stored(str(number))])
    store.close()
    body = bytearray(path.read_bytes())
    body[4096 : len(body) // 2] = b"\x5a" * (len(body) // 2 - 4096)
    path.write_bytes(bytes(body))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign, "another program; it was left as it is"),
        (newer, r"newer soak \(schema 7"),
        (text, "not a state file of soak"),
        (damaged, "damaged one .*Restore it from a copy"),
    ],
)
@pytest.mark.parametrize("exclusive", [True, False])
def test_files_that_cannot_be_used_are_left_as_they_are(
    make: object, words: str, exclusive: bool, path: Path
) -> None:
    path.parent.mkdir()
    make(path)  # type: ignore[operator]
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StateUnusable, match=words):
            Store(path, exclusive=exclusive)
    assert path.read_bytes() == before
    assert make is not text or [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnusable, match="Not a directory"):
        Store(tmp_path / "file" / "state.sqlite")
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(StateUnusable, match="Is a directory"):
        Store(tmp_path / "folder.sqlite")


@pytest.mark.parametrize("after", [3, 10, 31])
def test_a_kill_at_any_moment_loses_nothing_that_was_committed(path: Path, after: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    said = 0
    for line in child.stdout:
        said = int(line)
        if said >= after:
            child.send_signal(signal.SIGKILL)
            break
    rest = child.stdout.read().split()
    child.wait()
    said = int(rest[-1]) if rest else said
    store = Store(path)  # the system has let go of the dead process's lock
    kept = store.load("f", 1)
    assert kept is not None
    assert kept.state["number"] == kept.probes >= said
    assert len(store.alarms("f")) == kept.probes // 10
    save(store, kept.probes + 1)
    store.close()
