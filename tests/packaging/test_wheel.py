"""Wheel and sdist: what is in them, what they say of themselves, and that soak runs from them alone."""

from __future__ import annotations

import email.message
import email.parser
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from soak import __version__

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.package


def run(*words: str | Path, cwd: Path) -> str:
    """What a command prints. The environment holds nothing that would make Python find the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)  # sdist, and the wheel from it
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("soak-*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return folder


def shipped(folder: str) -> set[str]:
    return {f"soak/{folder}/{path.name}" for path in (ROOT / folder).glob("*.yaml")}


def test_the_wheel_holds_the_code_the_types_and_what_the_commands_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "soak").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= names
    assert "soak/py.typed" in names
    assert shipped("workloads") <= names
    assert shipped("experiments") <= names
    others = {name for name in names if not name.startswith(("soak/", "soak-"))}
    assert not others, "the wheel would put these beside soak"


def test_the_sdist_builds_and_tests_itself(dist: Path) -> None:
    (found,) = dist.glob("soak-*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("pyproject.toml", "LICENSE", "README.md", "Makefile", "tests/__init__.py", "docs/index.md"):
        assert name in names
    assert not [name for name in names if name.startswith((".venv", "build/", "soak-runs", ".hypothesis"))]
    assert found.stat().st_size < 5_000_000


def test_the_metadata_say_what_it_is(metadata: email.message.Message) -> None:
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "prefix cache" in metadata["Summary"]
    assert str(metadata.get_payload()).startswith("# soak")
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert not [c for c in classifiers if c.startswith("License ::")], "the licence expression says it"


def test_it_says_its_version(bare: Path, tmp_path: Path) -> None:
    assert __version__ in run(bare / "bin" / "soak", "--version", cwd=tmp_path)


def test_every_command_loads(bare: Path, tmp_path: Path) -> None:
    soak = bare / "bin" / "soak"
    listed = run(soak, "--help", cwd=tmp_path).split("Commands:")[1].split("Examples:")[0]
    names = re.findall(r"^ {2}([a-z][a-z-]*)", listed, re.MULTILINE)
    assert "run" in names
    for name in names:
        assert "Usage:" in run(soak, name, "--help", cwd=tmp_path)


def test_the_demo_finds_its_fault(bare: Path, tmp_path: Path) -> None:
    said = run(
        bare / "bin" / "soak", "demo", "--fault", "state-not-restored", "--duration", "20s", cwd=tmp_path
    )
    assert "CORRUPT: the prefix cache serves something else" in said
    assert (next((tmp_path / "soak-runs").iterdir()) / "summary.json").is_file()


def test_types_reach_who_imports_it(bare: Path, tmp_path: Path) -> None:
    run(bare / "bin" / "python", "-m", "pip", "install", "--quiet", "mypy", cwd=tmp_path)
    (tmp_path / "mine.py").write_text("from soak.config import load\n\nreveal_type(load(None).run.seed)\n")
    said = run(bare / "bin" / "python", "-m", "mypy", "--strict", "mine.py", cwd=tmp_path)
    assert 'Revealed type is "int"' in said or 'Revealed type is "builtins.int"' in said
