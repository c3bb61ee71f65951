"""`soak run` against real servers: CLEAN on healthy ones, CORRUPT on spoiled ones, and no key anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from soak.plan.spec import DEFAULT_WEIGHTS

from .conftest import API_KEY
from .server import ROOT, Server

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Done:
    """One finished run of the command, with all that it wrote and how large it was, in MiB by the second."""

    code: int
    summary: dict[str, Any]
    written: str
    sizes: list[tuple[float, float]]


def rss_mib(pid: int) -> float | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return None if found is None else int(found[1]) / 1024


def scraped(said: str) -> str:
    """The run's own /metrics, whose address it prints."""
    found = re.search(r"metrics at (http://\S+)", said)
    if found is None:
        return ""
    with urllib.request.urlopen(found[1], timeout=10) as answer:
        return str(answer.read().decode())


def soak(
    server: Server, config: str, out: Path, *words: str, key: str | None = None, interrupt_after: float = 0
) -> Done:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "SGLANG_API_KEY": key or ""}
    said, errors = out / "said.txt", out / "errors.txt"
    command = [sys.executable, "-m", "soak", "run", str(HERE / config), "--target", server.url]
    with said.open("wb") as stdout, errors.open("wb") as stderr:
        child = subprocess.Popen(
            [*command, "--out", str(out), *words], cwd=ROOT, stdout=stdout, stderr=stderr, env=environment
        )
    begun, sizes, metrics = time.monotonic(), [], ""
    title = Path(f"/proc/{child.pid}/cmdline").read_text()
    try:
        while child.poll() is None:
            elapsed = time.monotonic() - begun
            assert elapsed < 600, said.read_text()
            size = rss_mib(child.pid)
            if size is not None:
                sizes.append((elapsed, size))
            if not metrics and elapsed > 8:
                metrics = scraped(said.read_text())
            if interrupt_after and elapsed > interrupt_after:
                child.send_signal(signal.SIGINT)
                interrupt_after = 0
            time.sleep(0.5)
    finally:
        child.kill()
        child.wait()
    written = "\n".join(path.read_text(errors="replace") for path in sorted(out.rglob("*")) if path.is_file())
    summary = out / "summary.json"
    return Done(
        child.returncode,
        json.loads(summary.read_text()) if summary.exists() else {},
        written + metrics + title,
        sizes,
    )


def assert_clean(done: Done, valid: int) -> None:
    summary = done.summary
    assert summary["verdict"] == "CLEAN", done.written
    assert done.code == summary["exit_code"] == 0
    assert summary["probes"]["valid"] > valid
    assert summary["probes"]["valid_share"] >= 0.9
    assert set(summary["divergence"]) == set(DEFAULT_WEIGHTS)
    for shape, seen in summary["divergence"].items():
        assert seen["probe"]["count"] > 0, shape
        assert seen["probe"]["max_abs"]["max"] < 1e-4, shape
    assert {c["state"] for c in summary["coverage"]} <= {"presumed", "confirmed"}
    assert summary["simulator"] is False


def assert_flat(done: Done) -> None:
    """Memory of the last fifth of the run against that of the second fifth, by medians."""
    whole = done.sizes[-1][0]
    early = sorted(mib for at, mib in done.sizes if 0.2 * whole < at < 0.4 * whole)
    late = sorted(mib for at, mib in done.sizes if at > 0.8 * whole)
    assert late[len(late) // 2] < 1.2 * early[len(early) // 2]


def assert_corrupt(done: Done) -> None:
    summary = done.summary
    assert summary["verdict"] == "CORRUPT", done.written
    assert done.code == summary["exit_code"] == 1
    named = {a["shape"] for a in summary["detector"]["alarms"] if a["verdict"] == "CORRUPT"}
    assert named
    for shape in named:
        assert summary["divergence"][shape]["probe"]["max_abs"]["max"] > 1e-2, shape


def running(server: Server) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(("sglang:num_running_reqs{", "sglang:num_queue_reqs{"))
    )


def test_attention_is_clean_and_the_key_is_nowhere(llama: Server, tmp_path: Path) -> None:
    done = soak(llama, "llama.yaml", tmp_path, key=API_KEY)
    assert_clean(done, valid=60)
    assert_flat(done)
    assert "soak_probes_total" in done.written  # the metrics were really looked at
    assert API_KEY not in done.written


def test_an_interrupted_run_leaves_nothing_on_the_server(llama: Server, tmp_path: Path) -> None:
    done = soak(llama, "llama.yaml", tmp_path, key=API_KEY, interrupt_after=15)
    assert done.code == 130
    assert done.summary["interrupted"] is True
    deadline = time.monotonic() + 10
    while running(llama) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running(llama) == 0


@pytest.mark.parametrize("key", [None, "not-" + API_KEY[::-1]])
def test_a_missing_or_wrong_key_is_said_before_any_load(
    llama: Server, tmp_path: Path, key: str | None
) -> None:
    done = soak(llama, "llama.yaml", tmp_path, key=key)
    assert done.code == 4
    assert "key" in done.written
    assert "SGLANG_API_KEY" in done.written or "api_key" in done.written


def test_wiped_kv_is_found(llama_with_wiped_kv: Server, tmp_path: Path) -> None:
    done = soak(llama_with_wiped_kv, "llama.yaml", tmp_path, "--duration", "40s", key=API_KEY)
    assert_corrupt(done)
    assert API_KEY not in done.written


def test_a_hybrid_is_clean(hybrid: Server, tmp_path: Path) -> None:
    done = soak(hybrid, "hybrid.yaml", tmp_path)
    assert_clean(done, valid=20)
    assert_flat(done)


def test_lost_states_do_not_pass_for_normal(hybrid_with_lost_states: Server, tmp_path: Path) -> None:
    done = soak(hybrid_with_lost_states, "hybrid.yaml", tmp_path, "--duration", "60s")
    assert_corrupt(done)
