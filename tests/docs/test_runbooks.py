"""What a runbook sends its reader to is there: panels by their titles, commands as they stand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_help import parsed
from tests.docs.pages import ROOT

PAGES = sorted((ROOT / "docs" / "runbooks").glob("*.md"))


def titles(value: Any) -> Iterator[str]:
    """Every title in a dashboard, its own among them."""
    if isinstance(value, dict):
        if isinstance(value.get("title"), str):
            yield value["title"]
        for below in value.values():
            yield from titles(below)
    elif isinstance(value, list):
        for below in value:
            yield from titles(below)


SHOWN = {
    title for path in (ROOT / "dashboards").glob("*.json") for title in titles(json.loads(path.read_text()))
}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_panels_and_commands_of_a_runbook_are_there(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    named = re.findall(r"(?<![*\w])\*([A-Z][^*]+)\*(?!\*)", text)
    assert set(named) <= SHOWN
    for command in re.findall(
        r"`(?:[a-z][^`]* )?(soak (?:alarms|ack|incidents|explain|run|replay)[^`]*)`", text
    ):
        parsed(command.split()[1:])  # with its arguments: a placeholder is one as well
