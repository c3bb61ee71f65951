"""The live display on a real (pseudo-)terminal of several sizes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def on_a_terminal(columns: int, lines: int, *, term: str = "xterm-256color") -> str:
    """All that the display writes to a terminal of that size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    without = ("COLUMNS", "LINES", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.export.on_a_terminal"],
        cwd=ROOT,
        env={**environment, "TERM": term, "LC_ALL": "C.UTF-8"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    said = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        said += piece
    os.close(master)
    assert child.wait(60) == 0, said.decode(errors="replace")
    return said.decode("utf-8")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 24), (200, 50), (80, 10)])
def test_the_panel_keeps_to_the_terminal_and_is_redrawn_in_place(columns: int, lines: int) -> None:
    said = on_a_terminal(columns, lines)
    shown = [line for line in plain(said).replace("\r", "\n").split("\n") if line.strip()]
    assert max(map(len, shown)) <= columns
    ups = [len(re.findall(r"\x1b\[1A", part)) for part in re.split(r"╭", said)]
    assert 0 < max(ups) < lines, "a frame higher than the terminal cannot be redrawn in place"
    assert said.count("╭") >= 4
    assert "a line that stays" in said
    words = ["verdict", "CORRUPT", "evidence", "k3", "load"]
    if lines >= 24:
        words += ["budget", "coverage", "events", "control", "13 of 14 reached"]
    for word in words:
        assert word in plain(said), word
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h"), "the cursor stays hidden"


def test_a_dumb_terminal_gets_lines() -> None:
    said = on_a_terminal(80, 24, term="dumb")
    assert "\x1b[1A" not in said
    assert "0:00 CORRUPT | probes 20 valid" in said
