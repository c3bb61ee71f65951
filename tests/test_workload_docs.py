"""docs/workloads.md against the known-fault table, the shapes and what ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soak.drive.conjunctions import CONJUNCTIONS
from soak.plan.shapes import SHAPES
from soak.runners.faults import BY_NAME, FAULTS

from .found.nightly import NOT_FOUND

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "workloads.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The cells of the first table that follows that header row."""
    lines = PAGE.split(heading + "\n", 1)[1].splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


BUGS = table("| report | what it needs | shape | probe | proof |")
NAMED = re.compile(r"`([a-z-]+)`")
NUMBERED = re.compile(r"#\d+")


def planted(row: list[str]) -> set[str]:
    return {name for name in NAMED.findall(row[4]) if name in BY_NAME}


def test_every_report_is_there_once() -> None:
    assert len(BUGS) == 54
    numbers = [f"{row[0].split(' #')[0]} {number}" for row in BUGS for number in NUMBERED.findall(row[0])]
    assert len(numbers) == len(set(numbers)) > 70


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.report], ids=lambda f: f.name)
def test_every_known_fault_proves_its_own_reports(fault: object) -> None:
    assert hasattr(fault, "report")
    assert hasattr(fault, "name")
    whose = fault.report.split(" #")[0]
    for number in NUMBERED.findall(fault.report):
        rows = [row for row in BUGS if row[0].startswith(whose) and number in NUMBERED.findall(row[0])]
        assert len(rows) == 1, f"{whose} {number}"
        assert fault.name in planted(rows[0])


@pytest.mark.parametrize("row", BUGS, ids=lambda row: row[0])
def test_each_has_a_shape_and_a_proof_or_says_why_not(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)
    _, _, shapes, _, proof = row
    if not shapes.startswith(("no shape", "every shape")):
        first = [name for name in re.split(r", ", shapes) if not name.startswith(("`", "over "))]
        assert first
        assert set(first) <= set(SHAPES)
    if proof.startswith("none: "):
        assert len(proof.split()) >= 5
    else:
        assert set(NAMED.findall(proof)) == planted(row) != set()


def test_the_table_of_shapes_is_the_registry() -> None:
    rows = table("| shape | what it does | reaches |")
    assert [row[0].strip("`") for row in rows] == list(SHAPES)
    for name, _, reaches in rows:
        wanted = [c.name for c in CONJUNCTIONS if c.reached_by == name.strip("`")]
        assert reaches.split(", ") == wanted


def test_the_table_of_workloads_is_the_folder() -> None:
    told = {row[0].strip("`") for row in table("| workload | for | runs | disturbs others |")}
    assert told == {path.stem for path in (ROOT / "workloads").glob("*.yaml")} - {"demo"}


def test_what_nightly_finds_and_does_not_is_said_of_every_fault() -> None:
    rows = {row[0].strip("`"): row for row in table("| fault | found | by |")}
    assert list(rows) == list(BY_NAME)
    assert {name for name, row in rows.items() if row[1].startswith("no")} == set(NOT_FOUND)
    for name, why in NOT_FOUND.items():
        assert rows[name][2] == why
