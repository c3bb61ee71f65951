"""A report at the end of every run, and of one that was killed; it never costs a run its exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from soak.cli.report import report_at_the_end
from soak.export.course_file import COURSE_NAME, read_course_file
from soak.report.writing import write_report
from tests.report.folders import finished, killed
from tests.report.reading import Page
from tests.survival.child import soaking
from tests.survival.server import Server


async def test_after_kill_nine_there_is_a_report(tmp_path: Path) -> None:
    """Of how it stood at its last save; resumed, the run goes on with its course, and makes its own."""
    folder, server = tmp_path / "out", Server()
    async with server.listening() as url:
        async with soaking(url, tmp_path) as child:
            async with asyncio.timeout(60):
                while not (folder / COURSE_NAME).exists():  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.05)
            child.process.send_signal(signal.SIGKILL)
            await child.process.wait()
        assert not (folder / "summary.json").exists()
        shown = Page(await asyncio.to_thread(lambda: write_report(folder).read_text()))
        assert "left no summary: it was killed, or it still goes on" in shown.text
        assert shown.count("svg") >= 2
        assert "run.seed" in shown.text
        before = read_course_file(folder / COURSE_NAME)
        assert not before["ended"]
        words = ("--resume", "--duration", "2s", "--set", "run.report=true")
        async with soaking(url, tmp_path, *words) as child:
            await child.ended(60)
    assert any(line.startswith("report: ") for line in child.said), "".join(child.said)
    assert (folder / "report.html").is_file()
    after = read_course_file(folder / COURSE_NAME)
    assert after["ended"]
    assert after["began_s"] == before["began_s"]
    assert after["run_id"] == before["run_id"]


def test_a_report_that_fails_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such folder" in report_at_the_end(tmp_path / "nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    told = report_at_the_end(tmp_path)
    assert told.startswith("no report: No such file")
    assert f"`soak report {tmp_path}` makes it later" in told


def test_without_matplotlib_the_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden" / "matplotlib"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    told = report_at_the_end(finished(tmp_path / "run"))
    assert "no report: the report's plots need matplotlib (not here): pip install 'soak[report]'" in told


def test_an_interruption_ends_the_report_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nkill -TERM $PPID\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    assert "no report: interrupted" in report_at_the_end(killed(tmp_path / "run"))
    assert time.monotonic() - began < 30
    assert signal.getsignal(signal.SIGTERM) is before
    assert os.getpid()
