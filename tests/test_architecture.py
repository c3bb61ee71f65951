"""The shape of the code base: who imports whom, what does no I/O, how long files get, which words belong."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "soak"

# Downwards only. A folder that is not named here may not exist.
MAY_IMPORT: dict[str, set[str]] = {
    "plan": set(),
    "runners": set(),
    "config": {"plan", "detect"},
    "sglang": {"plan", "runners"},
    "oracle": {"plan", "sglang"},
    "detect": {"oracle"},
    "store": {"runners", "detect"},
    "drive": {"plan", "runners", "sglang", "oracle"},
    "incident": {"plan", "runners", "sglang", "oracle", "drive", "detect", "store"},
    "export": {"plan", "sglang", "oracle", "drive", "detect", "incident"},
    "report": {"oracle", "detect", "incident", "export"},
    "sim": {"plan", "runners"},
    "run": {
        "config", "plan", "runners", "sglang", "oracle", "detect", "store", "drive", "incident", "export",
    },
    "shards": {"config", "plan", "sglang", "detect", "export", "run"},
    "chaos": {"config", "plan", "sglang", "oracle", "detect", "store", "drive", "export", "run"},
    "doctor": {"config", "plan", "runners", "sglang", "oracle", "drive"},
    "bench": {
        "config", "plan", "runners", "sglang", "oracle", "detect", "store", "drive", "incident", "export",
        "sim", "run",
    },
    "cli": {
        "config", "plan", "runners", "sglang", "oracle", "detect", "store", "drive", "incident", "export",
        "sim", "run", "shards", "chaos", "doctor", "bench", "report",
    },
    "__main__": {"cli"},
    "__init__": set(),
}  # fmt: skip

# Some folders may see only the plain data of another, never its machinery.
ONLY_DATA = {
    ("config", "detect"): {"run_length"},
    ("store", "detect"): {"verdict"},
    ("detect", "oracle"): {"amnesia", "divergence", "probe"},
    ("drive", "oracle"): {"amnesia", "divergence", "probe"},
    ("export", "oracle"): {"amnesia", "divergence", "probe", "recall"},
    ("export", "drive"): {"observation", "coverage_state", "deed"},
    ("export", "detect"): {"verdict"},
    ("export", "sglang"): {"exchange"},
}

PURE_FOLDERS = ("plan", "detect")
PURE_MODULES = (
    "oracle/amnesia.py", "oracle/canaries.py", "oracle/recall.py",
    "oracle/coarsened.py", "oracle/divergence.py", "oracle/probe.py",
    "export/quantiles.py", "export/closing.py", "incident/trace.py",
    "incident/about.py", "incident/cuts.py", "incident/ddmin.py", "incident/judge.py", "incident/order.py",
    "incident/rows.py", "incident/salt.py", "incident/sequential.py", "incident/shrink.py",
)  # fmt: skip
PURE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "decimal", "enum", "fractions",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "numpy", "operator", "re", "shlex", "soak",
    "string", "struct", "sys", "textwrap", "types", "typing",
}  # fmt: skip
DOES_IO = {"open", "print", "input", "exec", "eval", "__import__"}

NO_NAMES = re.compile(r"(^|_)(utils?|helpers?|managers?|common|misc|stuff)(_|$)", re.IGNORECASE)
NO_CLASS_NAMES = re.compile(r"(Utils?|Helpers?|Managers?)$")
MAX_LINES = 500

# Written in pieces, so that this file does not hold what it looks for.
FOREIGN = {
    "a path of one machine": r"(?<![\w./$}~-])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me/\w+)/",
    "a folder beside the repository": r"\.\./sha" + r"red\b|\bsha" + r"red/(?:facts|design|sglang)",
    "a package registry's host": (
        r"py" + r"pi\.org|python" + r"hosted\.org|npm" + r"js\.(?:org|com)|deb\." + r"debian\.org"
        r"|download\.py" + r"torch\.org|proxy\.go" + r"lang\.org"
    ),
}
NOT_OURS = {
    ".git",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "__pycache__",
    "node_modules",
}
NOT_OURS |= {"build", "dist", "runs", "soak-runs"}


def python_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if "__pycache__" not in p.parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, at any depth of the file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; name the module in full"
            assert node.module is not None
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def our_files() -> Iterator[Path]:
    folders = [ROOT]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.name in NOT_OURS or entry.name.startswith(".venv") or entry.name.endswith(".egg-info"):
                continue
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            elif entry.is_file():
                yield entry


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


SOURCES = python_files(PACKAGE)


def test_the_rule_itself_has_no_circle() -> None:
    order = list(TopologicalSorter(MAY_IMPORT).static_order())
    assert order.index("plan") < order.index("oracle") < order.index("export") < order.index("cli")


def test_every_folder_has_a_place() -> None:
    assert {folder_of(path) for path in SOURCES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    mine = folder_of(path)
    wrong = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] != "soak" or len(parts) < 2 or parts[1] not in MAY_IMPORT or parts[1] == mine:
            continue
        theirs = parts[1]
        if theirs not in MAY_IMPORT[mine]:
            wrong.append(f"{path}:{line}: {mine} may not import {name}")
        only = ONLY_DATA.get((mine, theirs))
        if only is not None and (len(parts) < 3 or parts[2] not in only):
            wrong.append(f"{path}:{line}: of {theirs}, {mine} may import {sorted(only)} only, not {name}")
    assert not wrong, "\n".join(wrong)


def pure_files() -> list[Path]:
    found = [path for path in SOURCES if folder_of(path) in PURE_FOLDERS]
    return found + [PACKAGE / module for module in PURE_MODULES]


@pytest.mark.parametrize("path", pure_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arithmetic_does_no_io(path: Path) -> None:
    wrong = [
        f"{path}:{line}: {name}: no I/O, no clock, no hidden randomness here"
        for line, name in imports(path)
        if name.split(".")[0] not in PURE_MAY_IMPORT or name.startswith("numpy.random")
    ]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOES_IO:
            wrong.append(f"{path}:{node.lineno}: calls {node.func.id}()")
        if isinstance(node, ast.Attribute) and node.attr == "random" and _is_numpy(node.value):
            uses = ast.get_source_segment(path.read_text(encoding="utf-8"), node)
            if folder_of(path) != "plan":
                wrong.append(f"{path}:{node.lineno}: uses {uses}")
    assert not wrong, "\n".join(wrong)


def _is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "numpy")


@pytest.mark.parametrize(
    "path", [*SOURCES, *python_files(ROOT / "tests")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_files_stay_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path} has {lines} lines; {MAX_LINES} is the most: one idea a module"


def test_names_say_what_is_inside() -> None:
    wrong = [
        str(path) for path in SOURCES if any(NO_NAMES.search(Path(part).stem) for part in path.parts[-3:])
    ]
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and NO_CLASS_NAMES.search(node.name):
                wrong.append(f"{path}:{node.lineno}: class {node.name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree(path)), f"{path} has no docstring"


def test_nothing_names_the_place_it_was_made_in() -> None:
    wrong = []
    for path in our_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        for what, pattern in FOREIGN.items():
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {what}: {match[0]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cd /wo" + "rk/main", "a path of one machine"),
        ("see ../sha" + "red/design.md", "a folder beside the repository"),
        ("https://py" + "pi.org/simple", "a package registry's host"),
    ],
)
def test_the_search_for_foreign_words_finds_them(text: str, what: str) -> None:
    assert re.search(FOREIGN[what], text)


@pytest.mark.parametrize("text", ["path/wo" + "rk/x", "share" + "d-prefix", "the sha" + "red namespace"])
def test_the_search_for_foreign_words_leaves_others_alone(text: str) -> None:
    assert not any(re.search(pattern, text) for pattern in FOREIGN.values())
