"""The audit of dependencies: vulnerable, clean, and not asked are three things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLEAN = {"name": "orjson", "version": "3.10", "vulns": []}
HOLE = {"id": "PYSEC-2026-1", "fix_versions": ["3.11"]}


def audited(tmp_path: Path, said: str, *more: str) -> tuple[int, str]:
    """With a pip-audit that says just that."""
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r})\nprint('no route', file=sys.stderr)\n")
    tool.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "audit.py"), str(tool), os.devnull, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def told(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(dependencies), "fixes": []})


def test_nothing_known(tmp_path: Path) -> None:
    assert audited(tmp_path, told(CLEAN)) == (0, "audit: none known of 1 packages\n")


@pytest.mark.parametrize("more", [(), ("--where-possible",)])
def test_a_vulnerability_is_one_anywhere(more: tuple[str, ...], tmp_path: Path) -> None:
    skipped = {"name": "x", "skip_reason": "not found"}
    code, said = audited(tmp_path, told(CLEAN, {**CLEAN, "vulns": [HOLE]}, skipped), *more)
    assert code == 1
    assert "orjson 3.10: PYSEC-2026-1, mended in 3.11" in said


@pytest.mark.parametrize(
    "said",
    ["", "{", "[]", told(), told(CLEAN, {"name": "aiohttp", "skip_reason": "Dependency not found"})],
)
def test_what_nobody_looked_up_is_never_called_clean(said: str, tmp_path: Path) -> None:
    code, words = audited(tmp_path, said)
    assert code == 3
    assert "NOT AUDITED" in words
    assert "none known" not in words
    code, words = audited(tmp_path, said, "--where-possible")
    assert code == 0
    assert "NOT AUDITED" in words


def test_a_tool_that_is_not_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "audit.py"), str(tmp_path / "none"), os.devnull], check=False
    )
    assert done.returncode == 3


def test_ci_makes_both() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make sbom" in steps
    assert "make audit" in steps
