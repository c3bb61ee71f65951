"""The whole circle: soak a faulty simulator, export what it found, replay, shrink and emit it elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from soak import config as configs
from soak.export.terminal import Terminal
from soak.incident.journal_reader import JournalReader
from soak.run.soaking import SoakRun
from soak.runners.faults import settings_for
from soak.sim.config import SimConfig
from soak.sim.server import running

PATIENCE_S = 120.0

LOAD: dict[str, Any] = {
    "arrivals": "constant",
    "rate": 2,
    "max_context": 300,
    "min_prompt": 48,
    "max_new_tokens": 6,
    "decode_tokens": 140,
    "burst": 3,
    "roots": 4,
}


@contextlib.asynccontextmanager
async def simulator(fault: str, *, planted: bool = True, **settings: Any) -> AsyncIterator[str]:
    """A simulator on which the fault can be reached, with or without it."""
    given = {"numerics": "exact", "max_mamba_slots": 1024, **settings_for([fault]), **settings}
    async with running(SimConfig(faults=(fault,) if planted else (), **given)) as url:
        yield url


def config(url: str, **sections: dict[str, Any]) -> configs.Config:
    values: dict[str, Any] = {
        "target": {"url": url},
        "run": {"duration": f"{PATIENCE_S}s", "drain": "2s", "seed": 3},
        "load": LOAD,
        "probe": {"rate": 8, "concurrency": 1, "tail": 24, "continuation": 24},
        "budget": {"probe_share": None, "pool_share_per_minute": None},
        "detect": {"max_abs_d": 0.01},
        "journal": {"after": "200ms", "before": "10s", "window": "30s"},
        "metrics": {"port": None},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return configs.build(values)


class _UntilAlarm(io.StringIO):
    """A screen that stops the run half a second after it reads of an alarm."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def write(self, text: str) -> int:
        if "(alarm " in text:
            self._loop.call_later(0.5, self.stop.set)
        return super().write(text)


async def soaked(loaded: configs.Config, out: Path) -> str:
    """Soak until the first alarm; the incident's id, in the journal of that folder."""
    screen = _UntilAlarm()
    with Terminal(screen, live=False) as terminal:
        await SoakRun(loaded, out, terminal).run(screen.stop)
    reader = JournalReader(out / "journal.sqlite")
    try:
        incidents = [incident for incident in reader.incidents() if incident.number is not None]
    finally:
        reader.close()
    assert incidents, screen.getvalue()
    return incidents[0].id


async def command(*words: str | Path, key: str = "") -> tuple[int, str]:
    """Run a command of ours, or a script; its exit code and all that it said."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(word) for word in words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"SGLANG_API_KEY": key} if key else {},
    )
    said, _ = await child.communicate()
    code = child.returncode
    assert code is not None
    return code, said.decode()


async def replay(*words: str | Path, key: str = "") -> tuple[int, str]:
    return await command("-m", "soak", "replay", *words, key=key)
