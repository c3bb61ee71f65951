"""docs/tutorial.md, word for word: its commands are typed into one shell, and what it prints is compared.

Figures and ids differ from run to run, so every digit is as good as another; ``...`` stands for any lines.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "tutorial.md"
BLOCKS = blocks(PAGE)
_ID = re.compile(r"\b[0-9a-f]{8}\b")


def comparable(line: str) -> str:
    return re.sub(r"[\d.,]+", "#", _ID.sub("#", " ".join(line.split())))


def missing(shown: str, printed: str) -> list[str]:
    """Lines that the page shows and the command did not print, in that order."""
    rest = [comparable(line) for line in printed.splitlines()]
    absent = []
    for line in shown.splitlines():
        wanted = comparable(line)
        if not wanted or line.strip() == "...":
            continue
        place = next((n for n, there in enumerate(rest) if there.startswith(wanted)), None)
        if place is None:
            absent.append(line)
        else:
            rest = rest[place + 1 :]
    return absent


def test_every_page_of_output_follows_a_command() -> None:
    assert [b.language for b in BLOCKS].count("sh") >= 6
    for before, block in zip([None, *BLOCKS], BLOCKS, strict=False):
        assert block.language in ("sh", "text")
        assert block.language == "sh" or (before is not None and before.language == "sh"), str(block)


@pytest.mark.parametrize(
    ("shown", "printed", "absent"),
    [
        ("exit code 1", "exit code 1", []),
        ("  a 3.5 s\n...\nb 1", "x\na 17 s and more\ny\nb 2", []),
        ("a\nb", "b\na", ["b"]),
        ("alarm 3fa9c1d2", "alarm 00112233", []),
        ("CLEAN", "CORRUPT", ["CLEAN"]),
    ],
)
def test_what_counts_as_printed(shown: str, printed: str, absent: list[str]) -> None:
    assert missing(shown, printed) == absent


def numbered() -> list[tuple[int, Block, str]]:
    """Each command block with what the page shows after it."""
    found = []
    for place, block in enumerate(BLOCKS):
        if block.language == "sh":
            after = BLOCKS[place + 1 : place + 2]
            shown = after[0].text if after and after[0].language == "text" else ""
            found.append((place, block, shown))
    return found


@pytest.mark.tutorial
def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 30000)), "the tutorial wants port 30000, and somebody has it"
    checkout = tmp_path / "soak"
    shutil.copytree(
        ROOT,
        checkout,
        ignore=shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*-runs", ".*_cache", "__pycache__"),
    )
    script = "set -m\n" + "".join(
        f"{block.text}\necho; echo '=== {place}'\n" for place, block, _ in numbered()
    )
    script += "kill $(jobs -p) 2>/dev/null\n"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        env={"PYTHON": getattr(sys, "_base_executable", sys.executable), **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    rest = done.stdout
    for place, block, shown in numbered():
        printed, mark, rest = rest.partition(f"=== {place}\n")
        assert mark, f"{block}: the shell did not get that far:\n{done.stdout[-4000:]}"
        assert missing(shown, printed) == [], f"{block} printed:\n{printed}"
