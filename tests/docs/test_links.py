"""Every link inside the repository leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, inline, name


def broken(page: Path) -> list[str]:
    found = []
    for token in inline(page):
        to = token.attrs.get("href") or token.attrs.get("src")
        if not to:
            continue
        parts = urlsplit(str(to))
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            found.append(f"{to}: no such file")
        elif parts.fragment and (target.suffix != ".md" or parts.fragment not in anchors(target)):
            found.append(f"{to}: no such heading in {name(target)}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](gone.md) [b](page.md#nowhere) [c](page.md#here) [d](#here) ![e](no.png)\n")
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    monkeypatch.setattr("tests.docs.test_links.name", lambda path: path.name)
    assert broken(page) == [
        "gone.md: no such file",
        "page.md#nowhere: no such heading in page.md",
        "no.png: no such file",
    ]
