"""The simulator answers as SGLang does: one conversation, against what real SGLang 0.5.18 said on the CPU.

``golden/`` holds what the real servers said. The tests marked real_sglang hold the conversation with a real
server again, so that a golden file cannot grow old unnoticed (SOAK_WRITE_GOLDEN=1 writes it anew).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.sim.conversation import conversation

GOLDEN = Path(__file__).parent / "golden"
LIKE: dict[str, dict[str, Any]] = {
    "falconh1": {"model": "hybrid", "radix_strategy": "no_buffer", "max_mamba_slots": 64},
    "llama": {"model": "attention"},
}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", list(LIKE))
async def test_the_simulator_says_what_sglang_said(name: str) -> None:
    expected = read(name)
    config = SimConfig(max_total_tokens=8192, prefill_graph=False, decode_graph=False, **LIKE[name])
    async with running(config) as url:
        said = json.loads(json.dumps(await conversation(url)))
    assert list(said) == list(expected)
    different = {key: (said[key], expected[key]) for key in expected if said[key] != expected[key]}
    assert different == {}


@pytest.mark.real_sglang
@pytest.mark.parametrize("name", list(LIKE))
async def test_sglang_still_says_so(name: str) -> None:
    from tests.real_sglang.server import start

    server = start(name)
    try:
        said = json.loads(json.dumps(await conversation(server.url)))
    finally:
        server.stop()
    if os.environ.get("SOAK_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / f"{name}.json").write_text(json.dumps(said, indent=1) + "\n")
    assert said == read(name)
