"""The journal on its own: nothing lost, bounded, refused in words, alive through a full disk and a kill."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.drive.observation import Observation
from soak.incident import journal_pruning, journal_writer
from soak.incident.journal_file import SCHEMA_VERSION, JournalFile, JournalUnusable, journal_path
from soak.incident.journal_pruning import Keep
from soak.incident.journal_reader import JournalReader
from soak.incident.journal_rows import PROMPT_COLUMNS, insert_prompts
from soak.incident.rebuild import read_trace
from soak.incident.trace import Origin
from soak.sglang.exchange import Answer, Outcome
from tests.incident.journalled import KEEP, Run


def rows(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as db:
        return db.execute(statement).fetchall()


def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for the writing thread."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_everything_told_is_there_after_closing(path: Path) -> None:
    run = Run(path)
    run.load(range(100))
    run.journal.close()
    assert rows(path, "SELECT count(*) FROM prompts") == [(len(run.loads),)]
    assert run.journal.written == len(run.loads)
    assert run.journal.dropped == 0


@pytest.mark.parametrize("count", [0, 1, 15, 16, 275, 530])
def test_many_rows_are_written_as_they_stand_however_few_statements_take_them(count: int, path: Path) -> None:
    run = Run(path)
    run.load(range(1))
    run.journal.close()
    row = rows(path, f"SELECT {PROMPT_COLUMNS} FROM prompts LIMIT 1")[0]
    file = JournalFile(path, writing=True)
    with file.transaction() as db:
        insert_prompts(db, [(2, row[1], index, *row[3:]) for index in range(count)])
    file.close()
    indices = rows(path, "SELECT idx FROM prompts WHERE session = 2 ORDER BY seq")
    assert indices == [(index,) for index in range(count)]


def test_a_row_is_on_the_disk_within_a_second(path: Path) -> None:
    run = Run(path)
    run.load(range(1))
    begun = time.monotonic()
    until(lambda: rows(path, "SELECT count(*) FROM prompts")[0][0] == len(run.loads))
    assert time.monotonic() - begun < 1.0
    run.journal.close()


def test_the_index_to_go_on_from(path: Path) -> None:
    run = Run(path)
    run.load(range(30))
    run.journal.close()
    reader = JournalReader(path)
    assert reader.next_index(run.run_id, 0, 1) == 30
    assert reader.next_index(run.run_id, 1, 2) == 0
    assert reader.next_index("of another run", 0, 1) == 0
    reader.close()
    again = Run(path)  # the same run under the same seed and nonce: a session of its own
    again.load(range(30, 33))
    again.journal.close()
    assert JournalReader(path).next_index(run.run_id, 0, 1) == 33
    assert rows(path, "SELECT count(DISTINCT session) FROM prompts") == [(2,)]


# What is refused


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p.write_bytes(b"not a database, a letter"), "no SQLite header"),
        (lambda p: sqlite3.connect(p).executescript("CREATE TABLE t (a)"), "another program"),
        (lambda p: p.write_bytes(p.read_bytes()[:8192] + bytes(40_000)), "damaged"),
        (
            lambda p: sqlite3.connect(p).executescript(f"PRAGMA user_version = {SCHEMA_VERSION + 1}"),
            "newer soak",
        ),
    ],
    ids=["no-database", "foreign", "damaged", "newer"],
)
def test_a_file_that_is_no_journal_is_left_as_it_is(
    path: Path, spoil: Callable[[Path], object], words: str, request: pytest.FixtureRequest
) -> None:
    if "foreign" not in request.node.callspec.id:
        run = Run(path)
        run.load(range(200))
        run.journal.close()
    spoil(path)
    before = path.read_bytes()
    for writing in (True, False):
        with pytest.raises(JournalUnusable, match=words):
            JournalFile(path, writing=writing)
    assert path.read_bytes() == before


def test_one_run_at_a_time_and_any_number_of_readers(path: Path) -> None:
    run = Run(path)
    with pytest.raises(JournalUnusable, match=r"in use by another soak .*one run at a time has a journal"):
        Run(path)
    run.load(range(3))
    readers = [JournalReader(path) for _ in range(3)]
    until(lambda: run.journal.written == len(run.loads))
    assert all(len(reader.load_prompts(1, 0, 9)) for reader in readers)
    with pytest.raises(JournalUnusable, match="readonly"):
        readers[0]._rows("DELETE FROM prompts")
    run.journal.close()
    Run(path).journal.close()


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(JournalUnusable, match="no such file"):
        JournalReader(tmp_path / "journal.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_it_lies_beside_the_state_file(tmp_path: Path) -> None:
    assert journal_path(tmp_path / "here" / "s.sqlite", tmp_path) == tmp_path / "here" / "journal.sqlite"
    assert journal_path(None, tmp_path) == tmp_path / "journal.sqlite"


# When the disk does not follow


def test_a_full_disk_is_said_and_what_fits_into_memory_is_written_later(path: Path) -> None:
    run = Run(path)
    run.load(range(5))
    until(lambda: run.journal.written == len(run.loads))
    db = run.journal._file.db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    run.load(range(5, 300))
    until(lambda: bool(run.journal._writer.failing))
    run.journal.tick()
    assert "not written, trying again" in run.said[0]
    assert "full" in run.said[0]
    assert "verdict go on" in run.said[0]
    assert len(run.said) == 1, "it is said once, not with every attempt"
    db.execute("PRAGMA max_page_count = 1000000")
    until(lambda: run.journal.written == len(run.loads))
    run.journal.tick()
    assert run.said[-1] == "journal: written again"
    run.journal.close()
    assert run.journal.dropped == 0


def test_what_the_disk_cannot_follow_is_dropped_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writer, "_MOST_QUEUED", 20)
    monkeypatch.setattr(journal_writer, "_GATHER_S", 5.0)
    run = Run(path)
    run.load(range(60))
    run.journal.alarm(run.alarm(1))  # never dropped
    run.journal.close()
    assert run.journal.dropped > 0
    assert run.journal.dropped + run.journal.written == len(run.loads) + 1
    assert rows(path, "SELECT id FROM incidents") == [("3fa9c1d2",)]


async def test_passes_about_a_prompt_that_was_dropped_have_their_ids_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(path)
    monkeypatch.setattr(journal_writer, "_MOST_QUEUED", 0)
    run.load(range(10))
    monkeypatch.undo()
    result = await run.probe(1)
    run.journal.alarm(run.alarm(1))
    run.journal.close()
    reader = JournalReader(path)
    trace, notes = read_trace(reader, "3fa9c1d2")
    assert [sent.ids.tolist() for sent in trace.sent] == [seen.sent.ids.tolist() for seen in run.passes]
    assert trace.case.victim is None
    assert "is not in the journal" in notes[0]
    assert result.valid


def test_a_broken_server_breaks_no_journal(path: Path) -> None:
    run = Run(path)
    (item,) = run.plan.items(0)[:1]
    answer = Answer("r", Outcome.MALFORMED, "\udcff and \0 in " + 10_000 * "its words")
    answer.output_ids = np.array([-1, 1 << 30], np.int32)
    run.journal.observe_load(Observation(item, 0, np.arange(9, dtype=np.int32), 0.0, answer))
    stored = run.alarm(1)
    run.journal.alarm(replace(stored, alarm=replace(stored.alarm, evidence="\udcff")))
    run.journal.close()
    run.journal.tick()
    (row,) = JournalReader(path).load_prompts(1, 0, 9)
    assert row.output_ids.tolist() == [-1, 1 << 30]
    assert row.detail.startswith("? and \0 in its words")
    assert JournalReader(path).incidents()[0].alarm.evidence == "\udcff"


def test_a_fault_of_the_journal_ends_the_run(path: Path) -> None:
    run = Run(path)
    run.journal._writer.put("no record at all", 0)  # type: ignore[arg-type]
    until(lambda: run.journal._writer.fault is not None)
    with pytest.raises(RuntimeError, match="journal's thread failed"):
        run.journal.tick()
    run.journal.close()


# Kill -9


CHILD = """
import sys, time
from pathlib import Path
from typing import Any
from tests.incident.journalled import Run
run = Run(Path(sys.argv[1]))
index = 0
print("begun", flush=True)
while True:
    run.load(range(index, index + 5))
    index += 5
    if index == 100:
        run.journal.alarm(run.alarm(1))
    print(index, time.time(), flush=True)
    time.sleep(0.005)
"""


def test_kill_9_costs_at_most_the_last_second(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    told: list[str] = []
    end = time.time() + 1.7
    while time.time() < end or len(told) < 25:
        told.append(child.stdout.readline())
    child.kill()
    killed = time.time()
    told += child.communicate()[0].splitlines()
    safe = max(int(line.split()[0]) for line in told if line and float(line.split()[1]) < killed - 1.0)
    found = {index for (index,) in rows(path, "SELECT idx FROM prompts")}
    assert set(range(safe)) <= found
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert JournalReader(path).next_index("0123456789ab", 0, 1) == max(found) + 1
    again = Run(path)  # and another run takes it up
    again.load(range(3))
    again.journal.close()


async def test_an_alarm_whose_incident_never_reached_the_disk_is_one_at_the_next_start(path: Path) -> None:
    run = Run(path)
    run.load(range(20))
    result = await run.probe(1)
    stored = run.alarm(1)
    run.journal.close()  # killed between the state file and the journal
    assert rows(path, "SELECT count(*) FROM incidents") == [(0,)]
    again = Run(path, seed=4)
    again.journal.recover([stored])
    again.load(range(5))
    again.journal.close()
    reader = JournalReader(path)
    trace, notes = read_trace(reader, stored.id)
    assert trace.case.warm.tobytes() == result.warm.tobytes()
    assert notes == []
    (before,) = reader.incidents()
    third = Run(path, seed=5)
    third.journal.recover([replace(stored, raised_s=1.0)])
    third.journal.close()
    assert reader.incidents() == [replace(before, complete=True)]


def test_an_alarm_of_which_the_journal_knows_nothing_is_an_incident_all_the_same(path: Path) -> None:
    run = Run(path)
    run.journal.recover([run.alarm(77, fingerprint="bbbb")])
    run.journal.close()
    (incident,) = JournalReader(path).incidents()
    assert incident.session is None
    assert "no probe of it" in incident.note


# Bounds


def test_bytes_an_item_of_a_thousand_tokens_and_sixty_four_returned(path: Path) -> None:
    """A million in a gigabyte; tests/incident/test_journal_size.py writes the million."""
    run = Run(path)
    run.long_load(5000)
    run.journal.close()
    with sqlite3.connect(path) as db:
        used = db.execute("PRAGMA page_count").fetchone()[0] * db.execute("PRAGMA page_size").fetchone()[0]
    assert used / 5000 < 400
    assert path.stat().st_size / 5000 < 400


async def test_the_oldest_rows_go_and_an_incident_holds_its_window(path: Path) -> None:
    short = replace(KEEP, bytes=400_000, window_us=10_000_000, before_us=1_000_000, after_us=500_000)
    run = Run(path, keep=short)
    run.load(range(400), gap_s=0.1)
    await run.probe(1)
    run.journal.alarm(run.alarm(1))
    run.long_load(2500, first=400)
    reader = JournalReader(path)
    until(lambda: run.journal.written > len(run.loads) + 2500)
    held = "SELECT count(*) FROM prompts WHERE idx < 400 AND origin = 0"
    until(lambda: rows(path, held)[0][0] < len(run.loads) / 3)
    until(lambda: run.journal.bytes <= 400_000)
    trace, _ = read_trace(reader, "3fa9c1d2")
    assert trace.case.victim is not None
    assert [s.ids.tolist() for s in trace.sent if s.origin is not Origin.LOAD] == [
        seen.sent.ids.tolist() for seen in run.passes
    ]
    assert rows(path, held)[0][0] > 0
    assert rows(path, "SELECT max(idx) FROM prompts") == [(2899,)]
    run.journal.close()


def test_rows_too_old_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_pruning, "_LOOK_EVERY_US", 0)
    run = Run(path, keep=Keep(age_us=1_000_000))  # all of the run is made up to be an hour ago
    for first in (0, 50):  # and again when all have gone
        run.load(range(first, first + 50))
        until(lambda: run.journal.written == len(run.loads))
        until(lambda: rows(path, "SELECT count(*) FROM prompts") == [(0,)])
    run.journal.close()


async def test_windows_that_fill_the_journal_are_given_up_oldest_first_and_said(path: Path) -> None:
    run = Run(path, keep=replace(KEEP, bytes=400_000, window_us=1 << 60))
    run.load(range(100))
    for number in range(1, 4):
        await run.probe(number)
    run.journal.alarm(run.alarm(1, 2, 3))
    run.long_load(3000, first=100)
    run.journal.alarm(run.alarm(3, name="0000beef"))  # holds everything since
    run.long_load(2000, first=3100)
    until(lambda: bool(run.journal._writer.said), within_s=60)
    until(lambda: run.journal.bytes <= 400_000, within_s=60)
    run.journal.tick()
    assert "full of the windows of incidents: that of incident 3fa9c1d2 is given up" in " ".join(run.said)
    reader = JournalReader(path)
    trace, _ = read_trace(reader, "3fa9c1d2")
    assert trace.case.victim is not None
    assert any(s.origin is Origin.PROBE for s in trace.sent)
    run.journal.close()


def test_readers_and_config_see_no_secret(path: Path) -> None:
    run = Run(path)
    run.journal.close()
    session = JournalReader(path).session(1)
    assert json.loads(json.dumps(session.fields)) == {"version": "0.5.17", "simulator": True}
