"""docs/workloads.md against the known-fault table, the shapes and what ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soak.drive.conjunctions import CONJUNCTIONS
from soak.plan.shapes import SHAPES
from soak.runners.faults import BY_NAME, FAULTS

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


PROBES = {
    " ".join(bold.split())
    for bold in re.findall(r"\*\*([^*]+)\*\*", PAGE.split("*Probe*:")[1].split("*Proof*")[0])
}


@pytest.mark.parametrize("row", BUGS, ids=lambda row: row[0])
def test_each_is_looked_at_by_a_probe_that_the_page_explains(row: list[str]) -> None:
    first = re.split(r"[,;(]", row[3])[0].strip()
    assert first in PROBES
    assert all(part in PROBES for part in row[3].split(", ")) or ";" in row[3]


UNCOUNTED = {
    # a third of its generations end beside a multiple of the track interval (tests/plan/test_shapes.py)
    "decode-seeded": {"ends_before_boundary", "others_decoding"},
    # the prompts of a burst that end their prefill first generate beside the chunks of the others
    "chunked-burst": {"others_decoding"},
}
"""What a shape brings about and no answer tells, so that no conjunction counts it."""

OF_THE_SERVER = {"prefill_graph", "host_tier", "lora", "retraction_backup"}
"""Conditions that conjunctions name and no load brings about: how the server was started."""

OF_LOAD = ({name for c in CONJUNCTIONS for name in c.conditions} - OF_THE_SERVER).union(*UNCOUNTED.values())


@pytest.mark.parametrize("row", BUGS, ids=lambda row: row[0])
def test_a_shape_brings_about_what_the_fault_that_proves_it_needs_of_load(row: list[str]) -> None:
    shapes = {name for name in row[2].split(", ") if name in SHAPES}
    if not shapes:
        assert row[2].startswith(("no shape", "every shape"))
        return
    brought = {name for c in CONJUNCTIONS if c.reached_by in shapes for name in c.conditions}
    brought |= {name for shape in shapes for name in UNCOUNTED.get(shape, ())}
    for fault in planted(row) if not row[4].startswith("none: ") else ():
        needed = {condition.name for condition in BY_NAME[fault].conditions} & OF_LOAD
        assert needed <= {"prefix_hit"} or (needed - {"prefix_hit"}) & brought, (fault, needed)


def test_the_table_of_shapes_is_the_registry() -> None:
    rows = table("| shape | what it does | reaches |")
    assert [row[0].strip("`") for row in rows] == list(SHAPES)
    for name, _, reaches in rows:
        wanted = [c.name for c in CONJUNCTIONS if c.reached_by == name.strip("`")]
        assert reaches.split(", ") == wanted


def test_the_table_of_workloads_is_the_folder() -> None:
    told = {row[0].strip("`") for row in table("| workload | for | runs | disturbs others |")}
    assert told == {path.stem for path in (ROOT / "workloads").glob("*.yaml")} - {"demo"}


def test_how_nightly_finds_it_is_said_of_every_fault() -> None:
    rows = {row[0].strip("`"): row for row in table("| fault | found | probes | by |")}
    assert list(rows) == list(BY_NAME)
    for name, (_, seconds, probes, by) in rows.items():
        assert re.fullmatch(r"\d+ s", seconds), name
        assert re.fullmatch(r"[\d,]+", probes), name
        assert NAMED.match(by), f"{name}: the channel first"
