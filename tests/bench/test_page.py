"""Tables of benches in pages: put there by code, and of the faults there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from soak.bench.page import put_between
from soak.runners.faults import BY_NAME

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "detection.md"
BEGIN, END = (f"<!-- soak bench detect: {which} -->" for which in ("begin", "end"))
PLACES = [
    (page, name)
    for page in sorted(DOCS.glob("*.md"))
    for name in re.findall(r"^<!-- soak bench ([a-z]+): begin -->$", page.read_text("utf-8"), re.MULTILINE)
]


def test_the_page_has_a_row_for_every_fault_and_no_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    between = text.partition(BEGIN)[2].partition(END)[0]
    first_table = between.partition("\n\n|")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)`", first_table, re.MULTILINE)) == set(BY_NAME)
    assert "`soak bench detect`" in between


def test_the_picture_of_the_page_is_there() -> None:
    (name,) = re.findall(r"!\[[^]]+\]\(([^)]+\.svg)\)", PAGE.read_text(encoding="utf-8"))
    assert "alarm at probe" in (PAGE.parent / name).read_text(encoding="utf-8")


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    put_between(page, "detect", "new")
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    for lacks in ("no markers", f"{BEGIN} and no end", f"{END} before {BEGIN}"):
        page.write_text(lacks, encoding="utf-8")
        with pytest.raises(ValueError, match="soak bench detect: begin"):
            put_between(page, "detect", "new")
        assert page.read_text(encoding="utf-8") == lacks


@pytest.mark.parametrize(("source", "name"), PLACES, ids=[name for _, name in PLACES])
def test_the_same_tables_put_in_again_change_nothing(source: Path, name: str, tmp_path: Path) -> None:
    page = tmp_path / source.name
    text = source.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    words = text.partition(f"{name}: begin -->\n\n")[2].partition(f"\n\n<!-- soak bench {name}: end")[0]
    put_between(page, name, words)
    assert page.read_text(encoding="utf-8") == text
    assert words.startswith(f"`soak bench {name}")
