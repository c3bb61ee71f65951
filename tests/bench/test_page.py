"""The tables in docs/detection.md are about the faults there are, and are put there by code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soak.bench.detect.table import BEGIN, END, put_into
from soak.runners.faults import BY_NAME

PAGE = Path(__file__).parents[2] / "docs" / "detection.md"


def test_the_page_has_a_row_for_every_fault_and_no_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    between = text.partition(BEGIN)[2].partition(END)[0]
    first_table = between.partition("\n\n|")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)`", first_table, re.MULTILINE)) == set(BY_NAME)
    assert "`soak bench detect`" in between


def test_the_picture_of_the_page_is_there() -> None:
    (name,) = re.findall(r"!\[[^]]+\]\(([^)]+\.svg)\)", PAGE.read_text(encoding="utf-8"))
    assert "alarm at probe" in (PAGE.parent / name).read_text(encoding="utf-8")


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert put_into(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no lines"):
        put_into("no markers", "new")
