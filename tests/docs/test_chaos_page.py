"""docs/chaos.md as written: its commands are typed against the simulator, and against real SGLang."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from soak.chaos.report import ChaosExit
from soak.chaos.running import experiments
from soak.chaos.spec import POST_CONDITIONS, Experiment
from soak.drive.deed import NAMES
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "chaos.md"
TEXT = PAGE.read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """The first cells of the table below a heading."""
    table = TEXT.split(f"{heading}\n", 1)[1].split("\n| ", 1)[1].split("\n\n", 1)[0]
    return [line.strip("| ").split(" |")[0].strip("`") for line in table.splitlines()[2:]]


def test_the_tables_are_whole() -> None:
    assert rows("### Actions") == list(NAMES)
    assert sorted(rows("### What must hold afterwards")) == sorted(POST_CONDITIONS)
    assert rows("## Exit codes") == [str(code.value) for code in ChaosExit]


def test_the_example_is_one() -> None:
    (example,) = [block.text for block in blocks(PAGE) if block.language == "yaml"]
    assert Experiment.model_validate(yaml.safe_load(example)).experiment == "mine"


def typed(folder: Path, serve: str) -> None:
    """All commands of the page, each block in the same shell, which stops at the first that fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = "\n".join(block.text for block in blocks(PAGE) if block.language == "sh").replace("30000", port)
    shell = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SOAK_CHAOS_LEDGER": str(folder / "ledger"),
            **({"SERVE": serve.replace("30000", port)} if serve else {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=1500)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all that the page has started, its server as well
            os.killpg(shell.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):  # one that the restart command has started, too
            os.kill(int((folder / "server.pid").read_text()), signal.SIGTERM)
    assert shell.returncode == 0, printed[-6000:]
    assert "nothing is in force" in printed
    for name in experiments():
        report = json.loads((folder / f"chaos-{name}" / "chaos.json").read_text())
        assert report["held"], report
        assert {one["outcome"] for one in report["done"]} == {"done"}
    assert not list((folder / "ledger").glob("*"))


@pytest.mark.tutorial
def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    typed(tmp_path, "")


@pytest.mark.slow
def test_they_do_on_real_sglang_too(tmp_path: Path) -> None:
    from tests.real_sglang.server import KIT, VENV, model

    serve = KIT / "serve.sh"
    typed(tmp_path, f"env SGLANG_KIT_VENV={VENV} {serve} {model('llama')} 30000 --max-total-tokens 16384")
