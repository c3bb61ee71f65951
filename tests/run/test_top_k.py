"""Candidates asked of a server: the coarsened KL through a whole run."""

from __future__ import annotations

from pathlib import Path

from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.run.test_soaking import config, soak


async def divergence(sim: SimConfig, folder: Path) -> dict[str, float]:
    async with running(sim) as url:
        loaded = config(
            url,
            run={"duration": "6s"},
            load={"shapes": {"shared-prefix": 1}},
            probe={"top_k": 5, "rate": 50},
        )
        summary, _ = await soak(loaded, folder)
    assert summary["probes"]["valid"]
    assert not summary["probes"]["hard_alarms"]
    found: dict[str, float] = summary["coarsened_kl"]["shared-prefix"]
    assert found["count"] == summary["divergence"]["shared-prefix"]["probe"]["count"]
    return found


async def test_nothing_where_the_cache_tells_the_truth_and_far_from_it_where_it_does_not(
    tmp_path: Path,
) -> None:
    assert (await divergence(SimConfig(numerics="exact"), tmp_path))["max"] == 0.0
    assert (await divergence(SimConfig(faults=("middle-truncated",)), tmp_path))["median"] > 0.05
