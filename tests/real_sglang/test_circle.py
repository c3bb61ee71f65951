"""The whole circle on real SGLang: soak a spoiled server, export what it found, replay, shrink, emit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from soak.incident.bundle import read_bundle
from soak.incident.journal_reader import JournalReader

from .conftest import API_KEY
from .server import ROOT, Server
from .test_soak import soak


def run(*words: str | Path) -> tuple[int, str]:
    """A command of ours, or a script, with the key in the environment; its exit code and words."""
    done = subprocess.run(
        [sys.executable, *(str(word) for word in words)],
        cwd=ROOT,
        env={**os.environ, "SGLANG_API_KEY": API_KEY},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_from_a_soak_to_a_script(llama_with_wiped_kv: Server, llama: Server, tmp_path: Path) -> None:
    spoiled, healthy = llama_with_wiped_kv.url, llama.url
    out, bundle, small, script = (tmp_path / name for name in ("run", "bundle", "small", "repro.py"))
    out.mkdir()
    soak(llama_with_wiped_kv, "llama.yaml", out, "--duration", "25s", key=API_KEY)
    reader = JournalReader(out / "journal.sqlite")
    names = [incident.id for incident in reader.incidents() if incident.number is not None]
    reader.close()
    code, said = run("-m", "soak", "incidents", "export", names[0], bundle, "--out", out)
    assert code == 0, said
    there = (
        "-m",
        "soak",
        "replay",
        "--bundle",
        bundle,
        "--target",
        spoiled,
        "--window",
        "20",
        "--speed",
        "max",
    )
    code, said = run(*there, "--repeat", "5")
    assert code == 1, said
    code, said = run(*there, "--minimize", "--budget", "60s", "--to", small, "--emit", script)
    assert code == 1, said
    trace, about = read_bundle(small)
    assert len(trace.sent) <= 6
    assert "minimised from" in about.notes[-1]
    codes = [run(script, spoiled) for _ in range(4)]  # the damage is done by every second hit
    assert any(code == 1 for code, _ in codes), codes
    # the healthy server says the same of itself: the planted fault is no flag that a fingerprint has
    code, said = run(
        "-m", "soak", "replay", "--bundle", small, "--target", healthy, "--speed", "max", "--repeat", "2"
    )
    assert code == 0, said
    code, said = run(script, healthy)
    assert code == 0, said
    written = [*bundle.iterdir(), *small.iterdir(), script, *tmp_path.glob("*.jsonl")]
    assert API_KEY not in "".join(path.read_bytes().decode(errors="replace") for path in written)
