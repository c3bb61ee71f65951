"""What must hold afterwards, on simulators: it holds on a healthy one, and each planted fault breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from soak.runners.faults import settings_for
from soak.sim.config import SimConfig
from soak.sim.server import running

from .running import condition, conduct, experiment

SMALL = {"max_total_tokens": 4096, "max_mamba_slots": 64, "context_len": 2048, "numerics": "exact"}
RETRACT = {"do": "retraction", "at": "10ms", "for": "50ms", "prompts": 3, "tokens": 120, "new_tokens": 160}
STORM = {"do": "abort-storm", "at": "10ms", "prompts": 6, "tokens": 900, "after": [1, 60]}
FILL = {"do": "pressure", "at": "10ms", "fill": 1.3, "tokens": 500, "new_tokens": 8}


async def through(tmp_path: Path, fault: str, actions: list[dict[str, Any]], *names: str, **sim: Any) -> Any:
    planted = {"faults": (fault,), **settings_for([fault])} if fault else {}
    async with running(SimConfig(**{**SMALL, **planted, **sim})) as url:
        return await conduct(experiment(url, actions, afterwards=names), tmp_path)


async def test_a_healthy_server_remembers_rightly(tmp_path: Path) -> None:
    """Retraction with backup, aborts in prefill, a full pool with a host tier: nothing scores otherwise."""
    names = ("serves", "retracted-like-cold", "aborted-not-poisoned", "old-prefixes-true")
    actions = [RETRACT, {**STORM, "at": "20ms"}, {**FILL, "at": "30ms"}]
    report = await through(tmp_path, "", actions, *names, retraction_backup=True, host_tokens=65536)
    assert {name: condition(report, name)["held"] for name in names} == dict.fromkeys(names, True), report
    assert [one["outcome"] for one in report["done"]] == ["done"] * 3
    assert report["exit_code"] == 0
    assert "retracted" in report["done"][0]["detail"]


@pytest.mark.parametrize(
    ("fault", "actions", "name", "sim"),
    [
        ("retract-lost-state", [RETRACT], "retracted-like-cold", {}),
        ("host-tier-race", [FILL], "old-prefixes-true", {"host_bandwidth": 8, "max_mamba_slots": 128}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_planted_fault_is_found(
    tmp_path: Path, fault: str, actions: list[dict[str, Any]], name: str, sim: dict[str, Any]
) -> None:
    """A prefix may by chance be on the device still, or in no tier any more: some tries."""
    for attempt in range(8):
        report = await through(tmp_path / str(attempt), fault, actions, name, **sim)
        found = condition(report, name)
        if found["held"] is False:
            break
    assert found["held"] is False, found
    assert found["of_memory"]
    assert report["exit_code"] == 1
