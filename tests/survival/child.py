"""``soak run`` as a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.survival.runs import config


class Child:
    """said: every line by now."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def says(self, pattern: str, within_s: float = 60.0) -> re.Match[str]:
        """The next line that has it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            while line := await self.process.stdout.readline():
                self.said.append(line.decode())
                if found := re.search(pattern, self.said[-1]):
                    return found
        raise AssertionError("it ended after:\n" + "".join(self.said))

    async def ended(self, within_s: float = 90.0) -> int:
        """Its exit code; the rest of its words are in ``said``."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            self.said += (await self.process.stdout.read()).decode().splitlines(keepends=True)
            return await self.process.wait()


@asynccontextmanager
async def soaking(
    url: str, folder: Path, *words: str, env: dict[str, str] | None = None, **sections: dict[str, Any]
) -> AsyncIterator[Child]:
    """A run of ten minutes with state and journal in ``folder``; killed at the end if it still runs."""
    written = config(
        url, **{"run": {"duration": "10m", "seed": 3, "drain": "1s", "report": False}, **sections}
    )
    (folder / "c.yaml").write_text(yaml.safe_dump(written.model_dump(mode="json", exclude_unset=True)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "soak", "run", str(folder / "c.yaml")),
        *("--state", str(folder / "state.sqlite"), "--out", str(folder / "out"), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "2000", "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
