"""``soak runners`` as people and builds call it: words, exit codes, and nothing imported of what is read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import soak
from soak.cli import main
from tests.runners.trees import releasable, site

REQUIRE = ["--require", "34184,32555"]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["runners", *map(str, words)])


def test_check_apply_check_revert(tmp_path: Path) -> None:
    site(tmp_path, releasable(), "0.5.16")
    first = run("check", "--site", tmp_path, *REQUIRE)
    assert first.exit_code == 1
    assert "required, and vulnerable: SGLang #34184" in first.output
    assert "looked at srt/model_executor/runner/prefill_cuda_graph_runner.py:" in first.output
    assert run("check", "--site", tmp_path).exit_code == 0

    written = run("apply", "--site", tmp_path)
    assert written.exit_code == 0
    assert written.output.count("fixed: ") == 2
    assert "nothing to do" in run("apply", "--site", tmp_path).output

    record = tmp_path / "etc" / "runners.json"
    second = run("check", "--site", tmp_path, *REQUIRE, "--json", "--record", record)
    assert second.exit_code == 0
    value = json.loads(second.output)
    assert value == json.loads(record.read_text())
    assert value["faults"]["stale-track-rows"]["required"] is True
    assert {value["faults"][name]["state"] for name in ("stale-track-rows", "stale-track-tail")} == {"fixed"}

    assert run("revert", "--site", tmp_path).output.count("put back: ") == 2
    assert "nothing to do" in run("revert", "--site", tmp_path).output
    assert run("check", "--site", tmp_path, *REQUIRE).exit_code == 1


def test_unknown_is_an_exit_code_of_its_own(tmp_path: Path) -> None:
    site(tmp_path, {"srt/elsewhere.py": "mamba_track_mask = mamba_track_indices = None\n"})
    answer = run("check", "--site", tmp_path, *REQUIRE)
    assert answer.exit_code == 3
    assert "required, and unknown" in answer.output


def test_what_cannot_be_checked(tmp_path: Path) -> None:
    assert run("check", "--site", tmp_path).exit_code == 2
    assert "no SGLang here" in run("check", "--site", tmp_path).output
    site(tmp_path, {"srt/model_executor/runner/prefill_cuda_graph_runner.py": "def broken(:\n"})
    broken = run("check", "--site", tmp_path)
    assert broken.exit_code == 2
    assert "prefill_cuda_graph_runner.py" in broken.output
    assert "there are 34184" in run("check", "--site", tmp_path, "--require", "1").output
    assert run("apply", "--site", tmp_path).exit_code == 2
    assert "give one of them" in run("check", "--site", tmp_path, "--python", sys.executable).output


def test_the_servers_interpreter_is_asked_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = site(tmp_path, releasable(), "0.5.17")
    (found.package / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = run("check", "--python", sys.executable)
    assert answer.exit_code == 0, answer.output
    assert str(found.package) in answer.output
    monkeypatch.delenv("PYTHONPATH")
    none = run("check", "--python", sys.executable)
    assert none.exit_code == 2
    assert "has no package sglang" in none.output


def test_it_needs_click_and_the_standard_library_only(tmp_path: Path) -> None:
    """What is copied into a server image: three files and one folder."""
    package, copy = Path(soak.__file__).parent, tmp_path / "copy" / "soak"
    (copy / "cli").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "cli/__init__.py", "cli/runners.py"):
        shutil.copy(package / name, copy / name)
    shutil.copytree(package / "runners", copy / "runners")
    site(tmp_path / "site", releasable(), "0.5.16")
    guard = (
        "import runpy, sys\n"
        "allowed = sys.stdlib_module_names | {'click', 'soak'}\n"
        "class Guard:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] not in allowed and not name.startswith('_'):\n"
        "            raise ImportError('not in a server image: ' + name)\n"
        "sys.meta_path.insert(0, Guard())\n"
        f"sys.path.insert(0, {str(copy.parent)!r})\n"
        f"sys.argv = ['soak', 'runners', 'check', '--site', {str(tmp_path / 'site')!r}]\n"
        "runpy.run_module('soak', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", guard], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "#34184  vulnerable" in done.stdout
