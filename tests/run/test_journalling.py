"""Whole runs and what they leave in the journal: incidents of planted faults, no secret, nothing held up."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from soak import config as configs
from soak.incident.history import history_of
from soak.incident.journal_reader import JournalReader
from soak.incident.rebuild import read_trace
from soak.incident.trace import Origin
from soak.oracle.probe import ProbeOutcome
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.test_soaking import EXACT, config, soak


async def test_a_planted_fault_is_an_incident_with_an_exact_trace(tmp_path: Path) -> None:
    fault = SimConfig(numerics="production", faults=("state-not-restored",))
    async with running(fault) as url:
        summary, _ = await soak(config(url), tmp_path)
    assert summary["incidents"]
    name = summary["incidents"][0]
    assert name in {alarm["id"] for alarm in summary["detector"]["alarms"]}
    assert summary["journal"]["dropped"] == 0
    assert summary["journal"]["path"] == str(tmp_path / "journal.sqlite")
    reader = JournalReader(tmp_path / "journal.sqlite")
    trace, notes = read_trace(reader, name)
    assert notes == [], "every prompt was made again and held against the digest of what was sent"
    case = trace.case
    assert case.outcome is ProbeOutcome.VALID
    assert len(case.warm) == len(case.cold) == len(case.ids) - case.start - 1
    assert abs(case.warm - case.cold).max() > 0.25
    history = history_of(trace)
    assert history.writer is not None
    assert {Origin.LOAD, Origin.PROBE} <= {sent.origin for sent in trace.sent}
    assert reader.server_said(0, 1 << 62)
    assert reader.session(1).fields["simulator_faults"] == "state-not-restored"


async def test_a_null_in_an_answer_is_an_incident_too(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="production", faults=("nan-logprob",))) as url:
        summary, _ = await soak(config(url, load={"served_share": 0.5}), tmp_path)
    reader = JournalReader(tmp_path / "journal.sqlite")
    outcomes = {read_trace(reader, name)[0].case.outcome for name in summary["incidents"]}
    assert ProbeOutcome.NON_FINITE in outcomes


async def test_the_journal_lies_beside_the_state_and_can_be_left_out(tmp_path: Path) -> None:
    async with running(EXACT) as url:
        with_state = config(url, run={"duration": "2s", "state": str(tmp_path / "kept" / "state.sqlite")})
        summary, _ = await soak(with_state, tmp_path / "one")
        assert summary["journal"]["path"] == str(tmp_path / "kept" / "journal.sqlite")
        without, _ = await soak(
            config(url, run={"duration": "2s"}, journal={"enabled": False}), tmp_path / "two"
        )
    assert without["journal"] is None
    assert not (tmp_path / "two" / "journal.sqlite").exists()


async def test_no_secret_and_no_address_of_a_key_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    monkeypatch.setenv("SOAK_TOKEN", "a-token-of-sixteen")
    async with running(EXACT) as url:
        loaded = config(url, target={"url": url, "api_key_env": "MY_KEY"}, run={"duration": "2s"})
        await soak(loaded, tmp_path)
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("PRAGMA wal_checkpoint")
        written = db.execute("SELECT config FROM sessions").fetchone()[0]
    assert "probe" in written
    held = (tmp_path / "journal.sqlite").read_bytes()
    for secret in (b"sk-very-secret", b"a-token-of-sixteen", b"MY_KEY"):
        assert secret not in held


async def test_a_journal_that_is_none_is_refused_before_any_load(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_text("a letter")
    async with running(EXACT) as url:
        with pytest.raises(configs.ConfigError, match=r"journal\.path: .*not a journal of soak"):
            await soak(config(url), tmp_path)
    assert (tmp_path / "journal.sqlite").read_text() == "a letter"
