"""The ledger: there before the deed, whole after a torn line, owned while its process lives, then gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from soak.chaos.ledger import (
    Ledger,
    LedgerUnusable,
    Undo,
    forget,
    ledger_folder,
    owned,
    read_ledger,
    taken_over,
)


def kept(path: Path) -> list[str]:
    return [entry.what for entry in read_ledger(path).in_force]


def test_what_is_in_force_is_on_the_disk_before_it_is(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "test")
    undo = Undo("start", "http://127.0.0.1:1", "KEY", "/k", ("a", "b"), 5.0, 1.0, "/out")
    with ledger.holding("kill", "server", undo):
        (entry,) = read_ledger(ledger.path).in_force
        assert entry.undo == undo
        assert entry == ledger.in_force[0]
    assert kept(ledger.path) == []
    assert oct(ledger.path.stat().st_mode & 0o777) == "0o600"
    ledger.close()
    assert list(tmp_path.iterdir()) == []


def test_it_is_synced_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    ledger = Ledger(tmp_path, "test")
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(ledger.path.read_bytes()))
    ledger.begin("pause", "server", Undo("continue"))
    assert b'"pause"' in synced[-1]


def test_a_block_that_fails_stays_in_force(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "test")
    with pytest.raises(ZeroDivisionError), ledger.holding("pause", "server", Undo("continue")):
        _ = 1 / 0
    ledger.close()
    assert kept(ledger.path) == ["pause"]


def test_a_torn_line_is_of_what_had_not_begun(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "test")
    ledger.begin("pause", "server", Undo("continue"))
    whole = ledger.path.read_bytes()
    ledger.begin("kill", "server", Undo("start"))
    both = ledger.path.read_bytes()
    for length in range(len(whole), len(both) - 1):
        ledger.path.write_bytes(both[:length])
        assert kept(ledger.path) == ["pause"]
    with taken_path(ledger) as path:
        forget(path, [1])  # after a torn line, too
    assert not ledger.path.exists()


class taken_path:  # noqa: N801 - reads as what it does
    """The ledger's process lets go of it, and somebody takes it over."""

    def __init__(self, ledger: Ledger) -> None:
        os.close(ledger._lock)
        self._taken = taken_over(ledger.path)

    def __enter__(self) -> Path:
        return self._taken.__enter__().path

    def __exit__(self, *error: object) -> None:
        self._taken.__exit__(None, None, None)


def test_damage_in_the_middle_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"experiment": "x", "pid": 1, "began_s": 1}\nnonsense\n{"end": 1}\n')
    with pytest.raises(LedgerUnusable, match="line 2 is damaged"):
        read_ledger(path)


def test_a_living_process_keeps_its_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "test")
    assert owned(ledger.path)
    with pytest.raises(LedgerUnusable, match="in use"), taken_over(ledger.path):
        raise AssertionError("it was taken")


def test_without_a_place_for_it_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnusable, match="SOAK_CHAOS_LEDGER"):
        Ledger(tmp_path / "file", "test")


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAK_CHAOS_LEDGER", str(tmp_path))
    assert ledger_folder() == tmp_path
    monkeypatch.delenv("SOAK_CHAOS_LEDGER")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert ledger_folder() == Path("/state/soak/chaos")
