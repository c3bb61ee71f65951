"""The table is data others join on: names are unique, rows are complete, settings do not contradict."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.runners.faults import BY_NAME, FAULTS, check_names, settings_for
from soak.runners.page import page
from soak.sim.config import SimConfig


def test_rows_are_complete() -> None:
    assert len(BY_NAME) == len(FAULTS)
    for fault in FAULTS:
        assert fault.title
        assert fault.cause.endswith(".")
        names = [c.name for c in fault.conditions]
        assert len(set(names)) == len(names)
        if fault.report:
            assert fault.conditions


@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_fault_can_be_planted_by_its_own_settings(name: str) -> None:
    config = SimConfig(faults=(name,), **settings_for([name]))
    assert config.faults == (name,)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown fault 'nope'; known: .*stale-track-rows"):
        check_names(["nope"])
    with pytest.raises(ValueError, match="unknown fault"):
        SimConfig(faults=("nope",))


def test_the_page_is_the_table() -> None:
    written = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    assert written == page(), (
        "write docs/faults.md again: python -c 'from soak.runners.page import page; print(page(), end=\"\")'"
    )
