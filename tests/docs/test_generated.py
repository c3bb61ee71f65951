"""The pages that are made from code are what the code says now."""

from __future__ import annotations

import re

import pytest
from pydantic import Field

from docs.generate.config import meanings
from docs.generate.pages import PAGES
from soak.config.values import Section
from soak.config.whole import Config
from tests.docs.pages import ROOT


@pytest.mark.parametrize("path", list(PAGES))
def test_the_page_is_what_the_code_says(path: str) -> None:
    written = (ROOT / "docs" / path).read_text(encoding="utf-8")
    assert written == PAGES[path](), f"docs/{path} is stale: run `python -m docs.generate`"


def test_every_key_is_there_with_words() -> None:
    rows = re.findall(
        r"^\| `([a-z_0-9.]+)` \| .+ \| .+ \| .+ \|$", (ROOT / "docs/reference/config.md").read_text(), re.M
    )
    wanted = [
        f"{name}.{key}"
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        for key in field.annotation.model_fields
    ]
    assert rows == wanted
    assert len(rows) > 60


class Example(Section):
    """Two keys, one with words."""

    told: int = Field(default=1, ge=1)
    """What it is,
    over two lines.
    """
    untold: int = 2


def test_words_are_read_from_below_the_key() -> None:
    assert meanings(Example) == {"told": "What it is, over two lines."}
