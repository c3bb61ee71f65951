"""Whole experiments in this process, on simulators of its own: small, quick, all files in a folder."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

from soak.chaos.running import ExperimentRun
from soak.chaos.spec import Experiment
from soak.export.terminal import Terminal

LIGHT: dict[str, Any] = {
    "run": {"drain": "2s"},
    "load": {
        "arrivals": "constant",
        "rate": 1,
        "max_context": 420,
        "min_prompt": 48,
        "max_new_tokens": 4,
        "decode_tokens": 8,
        "burst": 2,
        "shapes": {"shared-prefix": 1},
    },
    "probe": {"rate": 1, "concurrency": 1, "tail": 16, "continuation": 16, "timeout": "60s"},
    "budget": {"probe_share": None, "pool_share_per_minute": None},
    "detect": {"p0_max": 0.5},
    "stop": {"ttft": "60s"},
    "metrics": {"port": None},
}


def experiment(url: str, actions: list[dict[str, Any]], **more: Any) -> Experiment:
    """One target, given up to everything, with little load; ``more`` is laid over it."""
    values: dict[str, Any] = {
        "experiment": "test",
        "seed": 5,
        "targets": {"server": {"url": url, "disruptive": True, "ready_within": "60s"}},
        "soak": LIGHT,
        "actions": actions,
        "cool_down": "100ms",
        "witnesses": 2,
        "witness_tokens": 150,
        "stop_when": {"error_share": None, "corrupt": False},
        "afterwards": ["serves"],
    }
    return Experiment.model_validate(values | more)


async def conduct(planned: Experiment, folder: Path) -> dict[str, Any]:
    """Run it without a watchdog; its report."""
    with Terminal(io.StringIO(), live=False) as screen:
        ran = ExperimentRun(planned, folder / "out", folder / "ledger", screen, watchdog=False)
        async with asyncio.timeout(240):
            report = await ran.run(asyncio.Event())
    assert not list((folder / "ledger").glob("*"))
    return report


def condition(report: dict[str, Any], name: str) -> dict[str, Any]:
    """One condition of a report."""
    (found,) = [one for one in report["afterwards"] if one["name"] == name]
    return dict(found)
