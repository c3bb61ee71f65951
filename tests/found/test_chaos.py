"""A fault that wants several actions at once: an experiment that does them finds it, where it is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.chaos.running import condition, conduct, experiment

pytestmark = pytest.mark.found

TRIES = 6
"""It wants an abort while a prefix is on its way from the host, and a prompt that takes its slots."""
SIM: dict[str, Any] = {
    "max_total_tokens": 2048,
    "max_mamba_slots": 96,
    "context_len": 1500,
    "numerics": "exact",
    "host_tokens": 65536,
    "host_bandwidth": 4,
}
ACTIONS = [
    {"do": "pressure", "at": "10ms", "fill": 1.1, "tokens": 250, "new_tokens": 4},
    {"do": "pressure", "at": "1500ms", "fill": 1.5, "tokens": 400, "new_tokens": 24},
    {
        "do": "abort-storm",
        "at": ["1500ms", "2200ms"],
        "prompts": 4,
        "tokens": 16,
        "after": [5, 40],
        "of": "witnesses",
        "times": 8,
    },
]


async def filled_truly(fault: str, seed: int, folder: Path) -> bool:
    async with running(SimConfig(faults=(fault,) if fault else (), **SIM)) as url:
        planned = experiment(url, ACTIONS, afterwards=["fill-true"], witness_tokens=600, seed=seed)
        report = await conduct(planned, folder)
    held = condition(report, "fill-true")["held"]
    assert held is not None
    return bool(held)


async def test_an_abort_while_a_prefix_is_loaded(tmp_path: Path) -> None:
    for seed in range(TRIES):
        if not await filled_truly("abort-slot-reuse", seed, tmp_path / str(seed)):
            break
    else:
        pytest.fail(f"not found in {TRIES} experiments")
    assert await filled_truly("", seed, tmp_path / "healthy")
