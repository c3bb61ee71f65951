"""Names in the documentation are names of the code: config keys, metrics, alerts, exit codes, targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.alerts import alerts
from docs.generate.commands import MEANS
from soak.config.values import Section
from soak.config.whole import Config
from soak.run.exit_code import ExitCode
from tests.docs.pages import ALL_BLOCKS, PAGES, ROOT, inline, name

KEYS = {
    f"{section}.{key}"
    for section, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    for key in field.annotation.model_fields
}
SECTIONS = "|".join(Config.model_fields)
NO_KEYS = {"run.json", "journal.sqlite", "load.in_gaps"}
"""Files, and a key of summary.json."""
METRICS = set(re.findall(r"^\| `(soak_\w+)`", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.M))
_SUFFIX = re.compile(r"_(?:bucket|sum|count|created)$")
_TARGET = re.compile(r"^make ([a-z-]+)(?: |$)")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def code(page: Path) -> list[str]:
    return [token.content for token in inline(page) if token.type == "code_inline"]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_config_keys_exist(page: Path) -> None:
    told = {
        found[1]
        for text in code(page)
        if (found := re.fullmatch(rf"((?:{SECTIONS})\.[a-z_0-9]+)(?::? .*|=.*)?", text))
    }
    told = {key for key in told - NO_KEYS if not key.startswith("load.shapes.")}
    assert told <= KEYS, told - KEYS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_metrics_exist(page: Path) -> None:
    texts = code(page) + [block.text for block in ALL_BLOCKS if block.page == page]
    told = {_SUFFIX.sub("", found) for text in texts for found in re.findall(r"\bsoak_[a-z_0-9]+\b", text)}
    known = METRICS | {metric.removesuffix("_info") for metric in METRICS}
    wrong = {metric for metric in told - known if not any(known_.startswith(metric) for known_ in known)}
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    lines = code(page) + [
        line.strip() for block in ALL_BLOCKS if block.page == page for line in block.text.splitlines()
    ]
    told = {found[1] for line in lines if (found := _TARGET.match(line))}
    assert told <= TARGETS


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    pages = {page.stem: page for page in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert set(pages) == {alert["name"] for alert in alerts()}
    for alert, page in pages.items():
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {alert}\n")
        assert "\n## What to do\n\n" in text


def test_the_map_of_the_architecture_has_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "soak").glob("*/__init__.py")}
    assert len(folders) > 10
    assert [name for name in sorted(folders) if f"`soak/{name}`" not in page] == []


def test_every_exit_code_is_explained() -> None:
    assert set(MEANS) == set(ExitCode)


def test_there_is_something_to_compare() -> None:
    assert len(KEYS) > 60
    assert len(METRICS) > 50
    assert {"test", "demo", "docs"} <= TARGETS
