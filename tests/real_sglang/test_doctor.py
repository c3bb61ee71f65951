"""`soak doctor` at real servers: what it says of them is so, and its few requests leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest

from .conftest import API_KEY
from .server import ROOT, Server
from .test_soak import running


def doctor(server: Server, *words: str, key: str | None = None) -> tuple[int, str]:
    environment = {**os.environ, "SGLANG_API_KEY": key or ""}
    done = subprocess.run(
        [sys.executable, "-m", "soak", "doctor", server.url, *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert API_KEY not in done.stdout
    return done.returncode, done.stdout


def report(server: Server, key: str | None = None) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The JSON report, and its lines by name."""
    code, out = doctor(server, "--json", key=key)
    told = json.loads(out)
    assert told["exit_code"] == code
    lines = {line["name"]: line for group in told["groups"] for line in group["lines"]}
    return told, lines


def settled(server: Server) -> None:
    deadline = time.monotonic() + 10
    while running(server) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running(server) == 0
    assert server.alive()


def assert_ready(told: dict[str, Any], lines: dict[str, dict[str, str]]) -> None:
    assert told["state"] == "ready", json.dumps(told, indent=1)
    for tried in ("namespaces", "cold-pass", "warm-pass", "logprobs", "agreement"):
        assert lines[tried]["mark"] == "ok", lines[tried]
    assert told["server"]["version"] == "0.5.18"
    assert told["server"]["simulator"] is False
    assert told["trial"]["resumed"] == told["trial"]["written"] == 128
    assert told["trial"]["cold"] == 0
    assert told["trial"]["cold_cold"]["max_abs"] == 0
    assert told["trial"]["warm_cold"]["max_abs"] < 1e-4
    assert told["traffic"]["requests"] == 0
    assert told["sent"]["requests"] <= 16
    assert {one["exposure"] for one in told["faults"]} <= {"ruled-out", "fixed"}
    assert (told["geometry"]["chunk"], told["geometry"]["page"]) == (256, 1)
    assert told["geometry"]["max_total_tokens"] == 32768


def test_attention(llama: Server) -> None:
    told, lines = report(llama, API_KEY)
    assert_ready(told, lines)
    assert told["geometry"]["hybrid"] is False
    assert lines["key"]["words"] == "accepted"
    assert "LlamaForCausalLM" in lines["model"]["words"]
    assert "token ids only" in lines["model"]["words"]
    settled(llama)


@pytest.mark.parametrize("key", [None, "not-" + API_KEY[::-1]])
def test_a_missing_or_wrong_key(llama: Server, key: str | None) -> None:
    code, out = doctor(llama, key=key)
    assert code == 4
    assert ("an API key is wanted" if key is None else "the API key is refused") in out
    settled(llama)


def test_reads_only_sends_nothing(llama: Server) -> None:
    before = requests_so_far(llama)
    code, out = doctor(llama, "--reads-only", key=API_KEY)
    assert code == 3
    assert "nothing but GETs" in out
    assert requests_so_far(llama) == before


def test_a_hybrid(hybrid: Server) -> None:
    told, lines = report(hybrid)
    assert_ready(told, lines)
    geometry = told["geometry"]
    assert (geometry["hybrid"], geometry["strategy"], geometry["state_grid"]) == (True, "no_buffer", 256)
    assert lines["key"]["words"] == "none wanted"
    assert "512 states" in lines["limits"]["words"]
    settled(hybrid)


def requests_so_far(server: Server) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("sglang:num_requests_total{")
    )
