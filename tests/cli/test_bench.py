"""`soak bench detect` on a graded record: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from soak.bench.detect import bench as whole
from soak.bench.detect.bench import Benched
from soak.cli.bench import command
from tests.bench.made_up import outcome


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the bench comes to, and what it was asked; nothing is recorded."""
    asked: dict[str, Any] = {"lost": []}

    def bench(folder: Path, plan: object, **given: Any) -> Benched:
        asked.update(folder=folder, plan=plan, **given)
        return Benched(outcome(), [], asked["lost"], "about it")

    monkeypatch.setattr(whole, "bench", bench)
    return asked


def test_tables_or_json_and_the_plan_that_was_asked_for(graded: dict[str, Any], tmp_path: Path) -> None:
    ran = CliRunner().invoke(command, ["detect", "--records", str(tmp_path), "--jobs", "3"])
    assert ran.exit_code == 0
    assert "about it" in ran.output
    assert "| `short-tail-chunk` | 25% | 0.1 |" in ran.output
    assert (graded["plan"], graded["jobs"], graded["folder"]) == (whole.FULL, 3, tmp_path)
    ran = CliRunner().invoke(command, ["detect", "--reduced", "--json"])
    assert graded["plan"] is whole.REDUCED
    assert json.loads(ran.output)["faults"][0]["judged"]["exact"]["alarm"]["p90"] is None


def test_a_lost_fault_is_an_exit_code(graded: dict[str, Any]) -> None:
    graded["lost"].append("short-tail-chunk on exact servers: found in 50% of 2 runs")
    ran = CliRunner().invoke(command, ["detect"])
    assert ran.exit_code == 1
    assert "not as it should be: short-tail-chunk on exact servers" in ran.output


def test_a_page_without_markers_is_refused(graded: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Nothing here\n")
    ran = CliRunner().invoke(command, ["detect", "--page", str(page)])
    assert ran.exit_code == 1
    assert "are wanted in it" in ran.output
