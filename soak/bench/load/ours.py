"""soak's own client on the stub: alone, and with all that a run writes down about each answer.

The latter is a whole ``soak run`` (plan, driver, session, trail, journal, metrics, tally, coverage, victims,
course, watch, display), whose probes are as good as off: what is measured is the load's way.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from soak.bench.load.bare import IDS
from soak.bench.load.meter import Meter
from soak.config import build
from soak.drive.observation import Observation
from soak.export.terminal import Terminal
from soak.plan.item import Item
from soak.run.parts import Parts
from soak.run.soaking import SoakRun
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest
from soak.sglang.preflight import Target, examine

_NEVER_S = 1e9


async def client_alone(url: str, meter: Meter, at_once: int, tokens: int, *, stream: bool) -> int:
    """As many requests as the meter wants, by ``at_once`` workers, one prompt a request; how many failed."""
    failed, serials, ids = 0, itertools.count(), np.array(IDS, np.int32)
    async with SGLangClient(url, max_connections=at_once) as client:

        async def worker() -> None:
            nonlocal failed
            while meter.more():
                (answer,) = await client.generate(
                    GenerateRequest(
                        prompts=(ids,),
                        rids=(f"bench-{next(serials):010d}",),
                        max_new_tokens=tokens,
                        stream=stream,
                    )
                )
                failed += not answer.ok
                meter.done(len(answer.chunk_s))

        await asyncio.gather(*(worker() for _ in range(at_once)))
    return failed


class _Saturating:
    """Beside a run whose own plan is silent: its items, each sent as soon as one before it is answered."""

    def __init__(self, meter: Meter, at_once: int, tokens: int, *, stream: bool) -> None:
        self._meter, self._at_once = meter, at_once
        self._as = (("stream", stream), ("max_new_tokens", tokens))
        self.failed = 0

    def _items(self, parts: Parts) -> Iterator[tuple[Item, ...]]:
        for items in parts.driver.plan.walk():
            for item in items:
                for name, value in self._as:
                    object.__setattr__(item, name, value)  # fresh, nobody else's; a copy would be our cost
            yield items

    async def run(self, parts: Parts, target: Target) -> None:
        """Until the meter wants no more."""
        walk = self._items(parts)

        def seen(observation: Observation, in_gap: bool) -> None:
            self.failed += not observation.answer.ok
            self._meter.done(len(observation.answer.chunk_s))

        parts.record.beside.append(seen)

        async def worker() -> None:
            while self._meter.more():
                await parts.driver.begin(next(walk), time.monotonic(), _NEVER_S)

        await asyncio.gather(*(worker() for _ in range(self._at_once)))


class _Timing:
    """Beside an ordinary run: its CPU seconds between the first and the last second of its load."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.wall_s = self.cpu_s = 0.0
        self.requests = self.failed = 0

    async def run(self, parts: Parts, target: Target) -> None:
        """Until its time is over."""
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(self._seconds)
        self.wall_s, self.cpu_s = time.monotonic() - began, time.process_time() - cpu
        outcomes = parts.record.tally.outcomes
        self.requests = sum(outcomes.values())
        self.failed = self.requests - outcomes.get("ok", 0)


def _config(url: str, seconds: float, rate: float) -> Any:
    return build(
        {
            "target": {"url": url},
            "run": {"duration": seconds + 3600.0, "drain": 1.0, "report": False},
            "load": {
                "rate": rate,
                "shapes": {"shared-prefix": 1},
                "max_context": 128,
                "min_prompt": 16,
                "max_new_tokens": 8,
                "served_share": 0.0,
            },
            "probe": {"rate": 0.001, "concurrency": 1},
            "metrics": {"port": None},
        }
    )


async def _soak(  # noqa: PLR0917 - all of one round
    url: str, out: Path, stop: asyncio.Event, rate: float, beside: Any, seconds: float
) -> Any:
    config = _config(url, seconds, rate)
    async with SGLangClient(url) as client:
        target = await examine(client, affordable_tokens=0)  # the stub can be asked no experiment
    with Terminal(io.StringIO(), quiet=True) as screen:
        return await SoakRun(config, out, screen, beside=beside, examined=target).run(stop)


async def whole_run(  # noqa: PLR0917 - all of one round
    url: str, out: Path, stop: asyncio.Event, meter: Meter, at_once: int, tokens: int, *, stream: bool
) -> int:
    """A run that keeps ``at_once`` prompts in flight; how many failed."""
    beside = _Saturating(meter, at_once, tokens, stream=stream)
    await _soak(url, out, stop, 1e-6, beside, 3600.0)
    return beside.failed


async def at_rate(
    url: str, out: Path, stop: asyncio.Event, seconds: float, rate: float
) -> tuple[_Timing, dict[str, Any]]:
    """A run that sends its plan at ``rate``; what it took, and its summary."""
    beside = _Timing(seconds)
    return beside, await _soak(url, out, stop, rate, beside, seconds)
