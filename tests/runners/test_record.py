"""A record says what was checked, survives the way to a file and back, and is refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from soak.runners.checking import CHECKS, check_site, required_names
from soak.runners.exposure import mended_by
from soak.runners.faults import BY_NAME, FAULTS, RELEASES
from soak.runners.record import RecordError, parse, read, write
from tests.runners.trees import releasable, site


def test_there_and_back(tmp_path: Path) -> None:
    report = check_site(site(tmp_path, releasable(), "0.5.16"), required_names("34184,stale-track-tail"))
    assert report.required == ("stale-track-rows", "stale-track-tail")
    assert report.exit_code == 1
    path = tmp_path / "etc" / "soak" / "runners.json"
    write(report, path)
    record = read(path)
    assert record.version == "0.5.16"
    assert dict(record.states) == {name: answer.state for name, answer in report.answers.items()}
    assert record.states["stale-track-rows"] == "vulnerable"
    assert mended_by({**record.fields(), "runner_fix.track-overlap": "fixed"}) == {"track-overlap"}


def test_a_required_fix_that_cannot_be_seen_is_not_there(tmp_path: Path) -> None:
    files = {"srt/elsewhere.py": "mamba_track_mask = mamba_track_indices = None\n"}
    report = check_site(site(tmp_path, files), required_names("34184 32555"))
    assert report.unclear == ("stale-track-rows", "stale-track-tail")
    assert report.exit_code == 3


def test_what_the_table_says_is_complete() -> None:
    for fault in FAULTS:
        assert (fault.name in CHECKS) is bool(fault.number) is bool(fault.releases) is bool(fault.advice)
        if fault.releases:
            assert tuple(fault.releases) == RELEASES
            turned = [name for name, state in fault.releases.items() if state == "fixed"]
            assert fault.fixed == (turned[0] if turned else "")
    assert {fault.number for fault in FAULTS if fault.number} == {
        34184, 32555, 34043, 29792, 37836, 38815, 35049, 39342, 24638,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "soak-runners/9"}, "schema 'soak-runners/9'"),
        ({"faults": []}, "lacks sglang or faults"),
        ({"faults": {"x": {"state": "perhaps"}}}, "x has state 'perhaps'"),
    ],
)
def test_damaged_records(change: dict[str, Any], message: str) -> None:
    value = {"schema": "soak-runners/1", "sglang": {"version": "0.5.18"}, "faults": {}, **change}
    with pytest.raises(RecordError, match=message):
        parse(value)


def test_files_that_are_no_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        read(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"schema"')
    with pytest.raises(RecordError, match="not JSON"):
        read(tmp_path / "half.json")
    (tmp_path / "list.json").write_text(json.dumps([1]))
    with pytest.raises(RecordError, match="schema None"):
        read(tmp_path / "list.json")


def test_names_that_cannot_be_required() -> None:
    with pytest.raises(ValueError, match=r"'35957' is no fault .* 34184 \(stale-track-rows\)"):
        required_names("34184,35957")
    assert BY_NAME["retract-lost-state"].number == 0
