"""What nothing uses is not kept: every name that a module defines is met outside its definition."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
USERS = ("soak/**/*.py", "deploy/**/*.py", "docs/**/*.py", "docs/**/*.md", "pyproject.toml")
WORDS = Counter(
    word
    for pattern in USERS
    for path in ROOT.glob(pattern)
    for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
)


def defined(module: ast.Module) -> Iterator[str]:
    """Public functions, classes and constants; what is decorated is a framework's."""
    for node in module.body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.decorator_list
        ):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_no_name_is_defined_for_nobody() -> None:
    unused = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(ROOT.glob("soak/**/*.py"))
        for name in defined(ast.parse(path.read_text(encoding="utf-8")))
        if not name.startswith("__") and WORDS[name] < 2
    ]
    assert unused == []
