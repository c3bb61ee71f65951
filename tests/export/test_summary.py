from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from soak.detect.verdict import Verdict
from soak.export.summary import SCHEMA_VERSION, LoadCount, as_json, public_address, write_atomically
from tests.export.samples import FACTS, summary


def test_everything_a_reader_needs_is_there() -> None:
    found = summary()
    assert found["schema_version"] == SCHEMA_VERSION
    assert found["verdict"] == "CLEAN"
    assert found["probes"]["valid"] == 20
    assert found["probes"]["total"] == 23
    assert found["probes"]["valid_share"] == pytest.approx(20 / 22)
    assert found["probes"]["invalid"] == {"cold_hit": 1}
    assert found["probes"]["victims_evicted"] == 1
    assert found["divergence"]["shared-prefix"]["control"]["count"] == 20
    assert found["coverage"][0]["state"] == "confirmed"
    assert found["load"]["undelivered"] == {"server_busy": 1}
    assert found["load"]["delivered_ratio"] == pytest.approx(21 / 22)
    assert found["requests"]["long-context"]["outcomes"] == {"timed_out": 1}
    assert found["requests"]["shared-prefix"]["ttft_s"]["p90"] == pytest.approx(0.1, rel=0.01)
    assert found["started_at"] == "2026-03-01T12:00:00Z"
    assert found["duration_s"] == 90.0
    assert found["fingerprint"] == {"version": "0.5.18", "model_path": "tiny"}


def test_alarms_name_stream_and_probes() -> None:
    (alarm,) = summary(Verdict.CORRUPT)["detector"]["alarms"]
    assert alarm["stream"] == "shared-prefix/512/prefill"
    assert alarm["probes"] == [4, 9]
    assert alarm["verdict"] == "CORRUPT"


def test_json_has_sorted_keys_and_no_numbers_that_are_none() -> None:
    data = as_json(summary())
    read = json.loads(data)
    assert read["detector"]["log_evidence"]["long-context/1024/prefill"] is None
    assert list(read) == sorted(read)
    assert b"NaN" not in data and b"Infinity" not in data
    assert json.loads(as_json({"x": math.nan})) == {"x": None}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://user:secret@host:30000/?key=secret#secret", "http://host:30000"),
        ("http://host:30000/base/", "http://host:30000/base"),
        ("http://[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_an_address_loses_what_could_be_secret(given: str, shown: str) -> None:
    assert public_address(given) == shown
    data = as_json(summary(facts=replace(FACTS, target=given)))
    assert b"secret" not in data


def test_an_empty_run_has_a_summary() -> None:
    from soak.detect.verdict import DetectorReport
    from soak.export.tally import Tally

    found = summary(
        Verdict.VACUOUS,
        report=DetectorReport(Verdict.CALIBRATING),
        coverage=(),
        tally=Tally(),
        load=LoadCount(),
        interrupted=True,
    )
    assert found["probes"]["valid_share"] is None
    assert found["load"]["delivered_ratio"] is None
    json.loads(as_json(found))


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        summary(started_at=datetime(2026, 3, 1), ended_at=datetime(2026, 3, 1))


def test_written_whole_into_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one" / "summary.json"
    write_atomically(path, summary())
    write_atomically(path, summary(Verdict.CORRUPT))
    assert json.loads(path.read_bytes())["verdict"] == "CORRUPT"
    assert [p.name for p in path.parent.iterdir()] == ["summary.json"]


def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, {"run": 1})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, {"run": 2})
    assert json.loads(path.read_bytes()) == {"run": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_what_cannot_be_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    unknown: dict[str, Any] = {"x": object()}
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "summary.json", unknown)
    assert not list(tmp_path.iterdir())
