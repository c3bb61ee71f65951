"""The report in a real browser: no error, its script runs under its own policy, light differs from dark."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.report.writing import write_report
from tests.report.browser import Browser
from tests.report.folders import with_incident
from tests.report.reading import Page

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(with_incident(tmp_path_factory.mktemp("shown") / "run", words="<script>x()</script>"))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("profile"))


def test_it_is_shown_without_a_complaint(report: Path, chromium: Browser) -> None:
    shown = chromium.show(report)
    assert shown.complaints == []
    page = Page(shown.dom)
    assert page.count("svg") == 6
    assert len(page.scripts) == 1
    buttons = [attributes for tag, attributes in page.elements if tag == "button"]
    assert buttons, "nothing to copy"
    assert not any("hidden" in attributes for attributes in buttons), "the script did not run"


def test_the_browser_does_complain_where_there_is_something_wrong(
    report: Path, chromium: Browser, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(report.read_text().replace("</body>", "<script>alert(1)</script></body>"))
    assert chromium.show(broken).complaints


def test_light_dark_and_paper(report: Path, chromium: Browser, tmp_path: Path) -> None:
    light = chromium.picture(report, tmp_path / "light.png").read_bytes()
    dark = chromium.picture(report, tmp_path / "dark.png", dark=True).read_bytes()
    assert light.startswith(b"\x89PNG")
    assert min(len(light), len(dark)) > 40_000
    assert light != dark
    narrow = chromium.picture(report, tmp_path / "narrow.png", width=400).read_bytes()
    assert len(narrow) > 20_000
    assert chromium.print(report, tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
