"""Alarms between detector, file and people: ids, mutes, restarts, a disk that fails."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from soak.config import ConfigError
from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.detect.verdict import Alarm, Verdict
from soak.run.alarm_desk import AlarmDesk
from soak.runners.faults import FAULTS
from soak.store.alarms import ack_of
from soak.store.database import StateUnusable, Store, UnknownAlarm
from tests.detect.synthetic import ask_and_observe, calibrate, probe

SMOKE = DetectSettings(p0_max=0.2)
SERVER, OTHER = "aaaa", "bbbb"
NOW = 1_800_000_000.0
LOUD, HEALTHY = 2e-3, [1e-4, 1.2e-4, 0.8e-4]


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW

    def __call__(self) -> float:
        return self.now_s


class Run:
    """A detector at a desk, as a run has them; ``fresh`` calibrates it unless a file has done so."""

    def __init__(self, path: Path | None, fingerprint: str = SERVER, clock: Clock | None = None) -> None:
        self.said: list[str] = []
        self.detector = Detector(SMOKE)
        self.store = Store(path)
        self.clock = clock or Clock()
        self.desk = AlarmDesk(self.store, fingerprint, self.detector, self.said.append, self.clock)
        self.desk.start()
        calibrate(self.detector, HEALTHY)

    def alarm(self, probes: int = 30, shape: str = "shared-prefix") -> list[str]:
        """Loud probes; the ids of the alarms they came to."""
        return [
            self.desk.raised(alarm).id
            for number in range(probes)
            for alarm in ask_and_observe(self.detector, probe(number, LOUD, shape=shape), LOUD)
        ]

    def verdict(self) -> Verdict:
        return self.detector.report().verdict

    def evidence(self) -> float:
        return max(self.detector.report().log_evidence.values(), default=0.0)

    def kill(self) -> None:
        """As a kill would: nothing more is written, and the file is free again."""
        self.desk._writer.shutdown()
        self.store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def test_an_alarm_outlives_a_killed_run_until_it_is_acknowledged(path: Path) -> None:
    run = Run(path)
    (name,) = run.alarm()
    evidence = run.evidence()
    run.kill()
    again = Run(path)
    assert again.verdict() is Verdict.CORRUPT
    assert any("still alarmed: CORRUPT" in words and f"soak ack {name}" in words for words in again.said)
    assert [stored.id for stored in again.desk.standing()] == [name]
    assert again.evidence() > 13 and again.evidence() <= evidence
    again.desk.acknowledge(name, ack_of(now_s=NOW, by="ada"))
    assert again.verdict() is Verdict.CLEAN
    assert again.detector.report().log_evidence == {}
    again.kill()
    third = Run(path)
    assert third.verdict() is not Verdict.CORRUPT
    assert third.desk.standing() == []
    (row,) = third.desk.listing()
    assert (row["id"], row["acked"], row["by"]) == (name, "ack", "ada")
    (raised_again,) = third.alarm()
    assert raised_again != name
    third.desk.close()


async def test_calibration_is_reused_for_the_same_server_only(path: Path) -> None:
    run = Run(path)
    run.desk.probes = 41
    await run.desk.save()
    assert run.desk.saved_s == NOW
    run.kill()
    same = Run(path)
    (before,), (after,) = run.detector.report().kinds, same.detector.report().kinds
    assert before == after
    assert same.desk.probes == 41
    same.desk.close()
    other = Run(path, OTHER)
    assert other.desk.probes == 0
    other.desk.close()


def test_alarms_of_another_server_are_listed_and_do_not_count(path: Path) -> None:
    run = Run(path)
    (name,) = run.alarm()
    run.desk.close()
    other = Run(path, OTHER)
    assert other.detector.alarms == ()
    assert [row["id"] for row in other.desk.listing()] == [name]
    other.desk.acknowledge(name, ack_of(now_s=NOW))
    other.desk.close()
    back = Run(path)
    assert back.detector.alarms == ()
    assert back.detector.report().log_evidence == {}
    back.desk.close()


@pytest.mark.parametrize("decision", ["known", "until"])
def test_a_mute_sends_no_page_keeps_evidence_and_counts(path: Path, decision: str) -> None:
    given = {"known": FAULTS[0].name} if decision == "known" else {"until_s": NOW + 100}
    clock = Clock()
    run = Run(path, clock=clock)
    (name,) = run.alarm()
    before = run.detector.report().log_evidence
    run.desk.acknowledge(name, ack_of(now_s=NOW, **given))
    assert run.detector.report().log_evidence == before
    assert run.verdict() is Verdict.CORRUPT
    assert list(run.desk.muted().values()) == [decision]
    (note,) = run.desk.notes()
    assert f"alarm {name} on " in note and "muted" in note and "no page" in note
    later = Alarm(Verdict.SUSPECT, "paired", run.desk.standing()[0].alarm.stream, "shared-prefix", "w", ())
    run.detector.reinstate(later)
    run.desk.raised(later)
    assert list(run.desk.muted().values()) == [decision, decision]
    run.kill()
    again = Run(path, clock=clock)
    assert list(again.desk.muted().values()) == [decision, decision]
    assert any("muted" in words for words in again.said)
    clock.now_s = NOW + 100
    assert len(again.desk.muted()) == (2 if decision == "known" else 0)
    again.desk.close()


async def test_an_acknowledgement_in_the_file_reaches_a_run_that_goes_on(path: Path) -> None:
    run = Run(path)
    (name,) = run.alarm()
    beside = Store(path, exclusive=False)
    beside.acknowledge(name, ack_of(now_s=NOW))
    assert run.verdict() is Verdict.CORRUPT
    await run.desk.save()
    assert run.verdict() is Verdict.CLEAN
    assert beside.alarms()[0].applied
    await run.desk.save()
    assert [stored.id for stored in run.desk.standing()] == []
    beside.close()
    run.desk.close()


def test_an_acknowledgement_between_two_runs_is_taken_up(path: Path) -> None:
    run = Run(path)
    (name,) = run.alarm()
    run.kill()
    beside = Store(path, exclusive=False)
    beside.acknowledge(name, ack_of(now_s=NOW))
    beside.close()
    again = Run(path)
    assert again.verdict() is Verdict.CLEAN
    assert again.detector.report().log_evidence == {}
    again.desk.close()


def test_alarms_stand_even_where_the_evidence_is_of_another_version(path: Path) -> None:
    run = Run(path)
    (name,) = run.alarm()
    run.kill()
    db = sqlite3.connect(path)
    db.execute("UPDATE evidence SET version = 99")
    db.commit()
    db.close()
    again = Run(path)
    assert "calibrating afresh" in again.said[0]
    assert again.verdict() is Verdict.CORRUPT
    assert [stored.id for stored in again.desk.standing()] == [name]
    again.desk.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM evidence").fetchone() == (2,)
    db.close()


def test_evidence_that_does_not_fit_is_refused_in_words(path: Path) -> None:
    Run(path).desk.close()
    db = sqlite3.connect(path)
    db.execute("UPDATE evidence SET state = ?", (b'{"version": 1, "books": 3}',))
    db.commit()
    db.close()
    with pytest.raises(ConfigError, match=r"run\.state: the evidence in it does not fit .* Move the file"):
        Run(path)


async def test_a_disk_that_fails_is_said_once_and_the_alarm_is_written_later(path: Path) -> None:
    run = Run(path)
    other = sqlite3.connect(path)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON alarms BEGIN SELECT RAISE(ABORT, 'full'); END")
    other.commit()
    (name,) = run.alarm()
    await run.desk.save()
    assert [words for words in run.said if "not saved" in words and "full" in words] == run.said
    assert len(run.said) == 1
    assert [stored.id for stored in run.desk.standing()] == [name]
    other.execute("DROP TRIGGER full")
    other.commit()
    await run.desk.save()
    assert run.said[-1] == "run.state: saved again"
    assert other.execute("SELECT id FROM alarms").fetchall() == [(name,)]
    other.close()
    run.desk.close()


def test_without_a_file_everything_works_for_as_long_as_the_run() -> None:
    run = Run(None)
    (name,) = run.alarm()
    assert run.desk.facts()[run.detector.alarms[0]]["id"] == name
    with pytest.raises(UnknownAlarm):
        run.desk.acknowledge("nope", ack_of(now_s=NOW))
    run.desk.acknowledge(name, ack_of(now_s=NOW))
    assert run.verdict() is Verdict.CLEAN
    run.desk.close()


def test_two_runs_on_one_file(path: Path) -> None:
    run = Run(path)
    with pytest.raises(StateUnusable, match="in use by another soak"):
        Run(path)
    run.desk.close()
