"""The kit itself: healthy servers agree with themselves, planted corruptions show, nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import API_KEY
from .probing import Scored, divergence, generate, locate, namespace, random_ids, score
from .server import KIT, KitError, Server, model, require_environment, start

BOUND = 1e-4
"""Nats. Measured on healthy servers: 4e-6 on llama and falconh1."""
LOUD = 0.1
"""Nats, at the worst token. Measured under corruption: 2 (zero_kv_on_hit) and 0.5 (state_not_restored)."""
TAIL = 48

Writer = Callable[[Server, int, str | None], list[int]]


def test_environment_is_built() -> None:
    require_environment()


def probe(
    server: Server, prefix: list[int], seed: int, extra_key: str | None = None
) -> tuple[Scored, Scored]:
    """(warm, cold) of a prefix already in the cache, followed by TAIL tokens."""
    ids = prefix + random_ids(TAIL, seed)
    boundary = locate(server, ids, extra_key)
    assert boundary > 0, "nothing was hit"
    warm = score(server, ids, boundary, extra_key)
    cold = score(server, ids, boundary, namespace())
    again = score(server, ids, boundary, namespace())
    assert warm.cached_tokens == boundary
    assert cold.cached_tokens == again.cached_tokens == 0
    assert len(warm.logprobs) == len(cold.logprobs) == len(ids) - boundary - 1
    assert divergence(cold, again) == (0.0, 0.0)
    return warm, cold


def written_by_prefill(server: Server, length: int, extra_key: str | None = None) -> list[int]:
    prefix = random_ids(length, seed=length)
    generate(server, prefix, 1, extra_key)
    return prefix


def written_by_decode(server: Server, length: int, extra_key: str | None = None) -> list[int]:
    prompt = random_ids(length, seed=10_000 + length)
    return prompt + generate(server, prompt, 40, extra_key)


@pytest.mark.parametrize("write", [written_by_prefill, written_by_decode])
@pytest.mark.parametrize("length", [120, 256, 700])
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_healthy_warm_is_cold(name: str, length: int, write: Writer, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    warm, cold = probe(server, write(server, length, None), seed=length)
    assert divergence(warm, cold)[0] <= BOUND


def test_llama_asks_for_its_key(llama: Server) -> None:
    bare = urllib.request.Request(llama.url + "/server_info")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(bare, timeout=30)
    assert refused.value.code == 401
    assert json.load(refused.value) == {"error": "Unauthorized"}
    assert API_KEY in llama.log.read_text(), "SGLang no longer logs its key: log_tail need not hide it"
    assert API_KEY not in llama.log_tail(10_000)
    assert API_KEY not in repr(llama)


@pytest.mark.parametrize("length", [200, 600])
def test_wiped_kv_shows_in_the_shared_namespace_only(llama_with_wiped_kv: Server, length: int) -> None:
    server = llama_with_wiped_kv
    private = namespace()
    control, control_cold = probe(server, written_by_prefill(server, length, private), length, private)
    assert divergence(control, control_cold)[0] <= BOUND
    warm, cold = probe(server, written_by_prefill(server, length), length)
    worst, k3 = divergence(warm, cold)
    print(f"zero_kv_on_hit, {length} tokens: max |d| {worst:.3g}, mean k3 {k3:.3g}")
    assert worst > LOUD


@pytest.mark.parametrize("write", [written_by_prefill, written_by_decode])
def test_lost_state_shows_on_every_resume(hybrid_with_lost_states: Server, write: Writer) -> None:
    server = hybrid_with_lost_states
    for extra_key in (None, namespace()):
        warm, cold = probe(server, write(server, 600, extra_key), 600, extra_key)
        worst, k3 = divergence(warm, cold)
        print(f"state_not_restored, {extra_key}: max |d| {worst:.3g}, mean k3 {k3:.3g}")
        assert worst > LOUD


def test_unknown_names_are_said() -> None:
    with pytest.raises(KitError, match=r"no model 'gpt'.*llama"):
        model("gpt")
    with pytest.raises(KitError, match=r"no corruption 'rust'.*zero_kv_on_hit"):
        start("llama", faults=("rust",))


def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path) -> None:
    """An owner killed outright takes the command's whole group with it, children included."""
    pids = tmp_path / "pids"
    command = ["bash", "-c", f"sleep 300 & echo $$ $! >{pids}.new; mv {pids}.new {pids}; wait"]
    supervise = [sys.executable, "-I", str(KIT / "supervise.py"), "5", *command]
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, time; p = subprocess.Popen({supervise!r}, stdin=-1); time.sleep(300)",
        ]
    )
    deadline = time.monotonic() + 30
    while not pids.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    group = [int(pid) for pid in pids.read_text().split()]
    assert all(running(pid) for pid in group)
    owner.kill()
    owner.wait()
    while any(running(pid) for pid in group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(running(pid) for pid in group)


def running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
