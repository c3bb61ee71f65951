"""docs/architecture.md: what a recipe names exists, public names can be imported and say what they are."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, blocks

PATH = ROOT / "docs" / "architecture.md"
PAGE = PATH.read_text(encoding="utf-8")
_FILE = re.compile(r"`((?:soak|tests|docs|workloads|deploy)/[\w./-]+)`")
_MODULE = re.compile(r"`(soak(?:\.\w+)+)`: ((?:`\w+`(?:, )?)+)")


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", sorted(set(_FILE.findall(PAGE))))
def test_named_files_exist(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("recipe", ["Add a shape", "Add a fault", "Add a detector"])
def test_each_recipe_names_code_and_a_test(recipe: str) -> None:
    named = _FILE.findall(section(recipe))
    assert any(name.startswith("soak/") for name in named)
    assert any(name.startswith("tests/") for name in named)


def public() -> list[tuple[str, str]]:
    return [
        (module, name)
        for module, names in _MODULE.findall(section("The typed API"))
        for name in re.findall(r"\w+", names)
    ]


@pytest.mark.parametrize(("module", "name"), public())
def test_public_names_are_there_typed_and_documented(module: str, name: str) -> None:
    thing = getattr(importlib.import_module(module), name)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        signature = inspect.signature(thing)
        assert signature.return_annotation is not inspect.Signature.empty
        raises = "raise " in inspect.getsource(thing)
        assert not raises or "Raises" in str(inspect.getdoc(thing)), f"{name} does not say what it raises"


def test_the_public_names_were_found() -> None:
    assert len(public()) >= 25


def test_the_example_runs_and_shows_the_fault() -> None:
    (example,) = [block.text for block in blocks(PATH) if block.language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT
    )
    said = re.search(r"resumed at 300 .*\nmax \|d\| ([\d.]+) nats", done.stdout)
    assert said is not None
    assert float(said[1]) > 0.5
