"""Whole runs on a small server, short and quick."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak import config as configs
from soak.export.terminal import Terminal
from soak.run.soaking import SoakRun


def config(url: str, **sections: dict[str, Any]) -> configs.Config:
    """A second or two of quick load and probes; sections are laid over it."""
    values: dict[str, Any] = {
        "target": {"url": url},
        "run": {"duration": "2s", "drain": "2s", "seed": 3},
        "load": {
            "arrivals": "constant",
            "rate": 20,
            "max_context": 420,
            "min_prompt": 48,
            "max_new_tokens": 4,
            "decode_tokens": 8,
            "burst": 3,
            "shapes": {"shared-prefix": 3, "decode-seeded": 1},
        },
        "probe": {"rate": 50, "concurrency": 2, "tail": 16, "continuation": 16, "timeout": "5s"},
        "budget": {"probe_share": None, "pool_share_per_minute": None},
        "detect": {"p0_max": 0.5, "min_valid_probes": 5},
        "thresholds": {"delivered_share": 0.9},
        "metrics": {"port": None},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return configs.build(values)


class Running:
    """A run on its way. said: what its screen has shown by now."""

    def __init__(self, loaded: configs.Config, out: Path, *, resume: bool = False) -> None:
        self.stop = asyncio.Event()
        self._text = io.StringIO()
        self.out, self._resume = out, resume
        self.task = asyncio.create_task(self._run(loaded, out))

    async def _run(self, loaded: configs.Config, out: Path) -> dict[str, Any]:
        with Terminal(self._text, live=False) as screen:
            return await SoakRun(loaded, out, screen, command="soak run again", resume=self._resume).run(
                self.stop
            )

    @property
    def said(self) -> str:
        return self._text.getvalue()

    async def until(self, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        """Wait for something while the run goes on."""
        deadline = time.monotonic() + within_s
        while not holds():
            if self.task.done():
                self.task.result()
                raise AssertionError(f"the run was over before that: {self.said}")
            assert time.monotonic() < deadline, self.said
            await asyncio.sleep(0.02)

    async def end(self, within_s: float = 60.0) -> dict[str, Any]:
        """Its summary."""
        summary = await asyncio.wait_for(self.task, within_s)
        written = json.loads((self.out / "summary.json").read_text())
        assert written == json.loads(json.dumps(summary))
        return summary


async def soak(loaded: configs.Config, out: Path) -> dict[str, Any]:
    """A whole run."""
    return await Running(loaded, out).end()


def alarms(summary: dict[str, Any]) -> list[Any]:
    """Those of the run; on a small server every one is false unless it was made to lie."""
    return list(summary["detector"]["alarms"])
