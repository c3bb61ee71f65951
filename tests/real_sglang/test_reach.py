"""What a real server can have is reached by the shapes that are for it, and a healthy one stays CLEAN."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import API_KEY
from .server import ROOT, Server, start
from .test_soak import HERE, soak

CANNOT = {"strict-json-together", "adapters-by-turns", "host-tier-resume", "abort-in-load-back"}
"""Without a tokenizer there is no grammar; no adapter is loaded; there is no host tier on a CPU."""


def states(summary: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["state"] for c in summary["coverage"]}


def assert_nothing_forgotten(summary: dict[str, Any]) -> None:
    assert summary["needles"]
    for row in summary["needles"]:
        assert row["forgotten"] == 0
        assert row["cached"]["logprob"] == pytest.approx(row["cold"]["logprob"], abs=1e-4)


def test_what_else_a_server_without_a_tokenizer_can_have_is_reached(llama: Server, tmp_path: Path) -> None:
    done = soak(llama, "reach.yaml", tmp_path, key=API_KEY)
    assert done.summary["verdict"] == "CLEAN", done.written
    reached = states(done.summary)
    assert reached["retraction-by-pause"] == reached["needle-recalled"] == "confirmed"
    assert {reached["canaries-together"], reached["queued-together"]} == {"presumed"}
    assert_nothing_forgotten(done.summary)
    assert API_KEY not in done.written


@pytest.mark.slow
def test_a_hybrid_reaches_all_that_it_can_have(hybrid: Server, tmp_path: Path) -> None:
    done = soak(hybrid, "reach-hybrid.yaml", tmp_path)
    assert done.summary["verdict"] == "CLEAN", done.written
    reached = states(done.summary)
    assert reached["decode-written-resume"] == reached["retraction-by-pause"] == "confirmed"
    short = {name for name, state in reached.items() if state not in {"presumed", "confirmed"}}
    assert short <= CANNOT | {"retraction", "abort-in-prefill", "abort-in-decode"}, short
    assert_nothing_forgotten(done.summary)


@pytest.mark.slow
def test_running_requests_are_retracted_and_nothing_is_found_wrong(tmp_path: Path) -> None:
    """Calibrated first: beside so much pressure a CPU leaves no room for the controls."""
    state = str(tmp_path / "state.sqlite")
    server = start("llama", extra_args=("--max-total-tokens", "2048"), api_key=API_KEY)
    try:
        calibrate = ["calibrate", str(HERE / "reach-pressure.yaml"), "--target", server.url, "--state", state]
        made = subprocess.run(
            [sys.executable, "-m", "soak", *calibrate, "--within", "280s"],
            cwd=ROOT,
            env={**os.environ, "SGLANG_API_KEY": API_KEY},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        done = soak(server, "reach-pressure.yaml", tmp_path, "--state", state, key=API_KEY)
    finally:
        server.stop()
    assert done.summary["verdict"] == "CLEAN", done.written
    assert states(done.summary)["retraction"] == "confirmed"
