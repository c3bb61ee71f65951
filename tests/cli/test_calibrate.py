"""``soak calibrate`` as a person meets it: progress, a signal, time that is up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from soak.cli.demo import shipped, simulator


def started(url: str, state: Path, *more: str) -> subprocess.Popen[str]:
    words = [
        "calibrate",
        str(shipped("demo")),
        "--url",
        url,
        "--state",
        str(state),
        "--p0-max",
        "0.01",
        *more,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "soak", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
    )


def test_a_signal_ends_it_with_what_there_is(tmp_path: Path) -> None:
    with simulator(None) as url:
        child = started(url, tmp_path / "s.sqlite")
        assert child.stdout is not None
        line = child.stdout.readline()  # the simulator's own note, or progress
        while "calibrating under load" not in line:
            assert line, "it ended before any progress"
            line = child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=10)
        assert child.returncode == 130, err
        assert "INTERRUPTED: what was learned so far is kept" in out
        assert "more controls are wanted" in out
        assert "Traceback" not in out + err
        assert (tmp_path / "s.sqlite").exists()

        child = started(url, tmp_path / "s.sqlite", "--within", "2s")
        out, err = child.communicate(timeout=30)
    assert child.returncode == 3, err
    assert "Not calibrated" in out
    assert "INTERRUPTED" not in out
