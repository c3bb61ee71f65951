"""docs/reliability.md names tests that exist, and enough of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| (?P<fault>.+?) \| (?P<times>.*?) ?\| (?P<lost>.+?) \| `(?P<file>[^:`]+)::(?P<test>\w+)` \|$"
)


def rows() -> list[re.Match[str]]:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| fault", "| tried"))
    ]
    found = [ROW.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return [match for match in found if match is not None]


def named_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_at_least_forty_faults_each_told_once() -> None:
    faults = [row["fault"] for row in rows()]
    assert len(faults) >= 40
    assert len(set(faults)) == len(faults)


def test_every_test_that_is_named_exists() -> None:
    missing = [
        f"{row['file']}::{row['test']}" for row in rows() if row["test"] not in named_in(ROOT / row["file"])
    ]
    assert missing == []


def test_every_test_of_a_fault_is_told() -> None:
    told = {row["test"] for row in rows()}
    for name in ("test_restarts", "test_server_faults", "test_replays"):
        tests = {t for t in named_in(Path(__file__).with_name(f"{name}.py")) if t.startswith("test_")}
        assert tests <= told, tests - told
