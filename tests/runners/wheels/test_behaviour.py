"""What the released code does to tensors, before and after the edits: rows cleared, tail not handed out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from soak.runners.applying import apply
from soak.runners.edits import KNOWN_RELEASES
from soak.runners.site import Site
from tests.runners.wheels.fetch import ROOT, release

pytestmark = pytest.mark.wheels

PYTHON = Path(os.environ.get("SOAK_SGLANG_VENV") or ROOT / ".venv-sglang") / "bin" / "python"
HARNESS = Path(__file__).with_name("harness.py")
LATER = ("0.5.18", "0.5.23")

HEALTHY_ROWS = {
    "after_wide": [1.0, 1.0, 1.0, 1.0],
    "after_narrow": [1.0, 1.0, 1.0, 1.0, 0.0],
    "after_pair": [1.0, 1.0, 1.0, 1.0, 0.0, 3.0, 3.0],
    "lengths_past_the_batch": [0, 0],
}
# the narrow batch lands in the checkpoints of rows 1 to 3, the pair in those of rows 2 and 3; row 0 is safe
FAULTY_ROWS = {
    "after_wide": [1.0, 1.0, 1.0, 1.0],
    "after_narrow": [1.0, 2.0, 2.0, 2.0, 0.0],
    "after_pair": [1.0, 2.0, 3.0, 3.0, 0.0, 3.0, 3.0],
    "lengths_past_the_batch": [0, 0],
}
FULL = [20, 21, 22, 23, 24, 25, 26, 27]
HEALTHY_TAIL = {"full": FULL, "small": [30, 31], "too_few_refused": True}
# the small batch is saved to the slots of the last two requests of the full one
FAULTY_TAIL = {"full": FULL, "small": [26, 27], "too_few_refused": False}


@pytest.fixture(scope="module")
def behaviour(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], dict[str, Any]]:
    """What every tree does, by release and whether the edits were written into it; one process has torch."""
    assert PYTHON.exists(), f"{PYTHON} is not there: `make real-sglang` builds the environment that has torch"
    trees = {(version, False): Site.at(release(version)) for version in (*KNOWN_RELEASES, *LATER)}
    for version in KNOWN_RELEASES:
        copy = tmp_path_factory.mktemp("mended") / version
        trees[version, True] = Site.at(Path(shutil.copytree(release(version), copy)))
        assert apply(trees[version, True])
    done = subprocess.run(
        [str(PYTHON), str(HARNESS), *(str(site.package) for site in trees.values())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return dict(zip(trees, found, strict=True))


@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_before_and_after_the_edits(version: str, behaviour: dict[Any, Any]) -> None:
    tail = HEALTHY_TAIL if version == "0.5.17" else FAULTY_TAIL
    assert behaviour[version, False] == {"rows": FAULTY_ROWS, "tail": tail}
    assert behaviour[version, True] == {"rows": HEALTHY_ROWS, "tail": HEALTHY_TAIL}


@pytest.mark.parametrize("version", LATER)
def test_releases_that_have_both_fixes(version: str, behaviour: dict[Any, Any]) -> None:
    assert behaviour[version, False] == {"rows": HEALTHY_ROWS, "tail": HEALTHY_TAIL}
