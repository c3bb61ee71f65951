"""The shard function: one shard of a run, soaked in this process. Local workers and Ray call the same one."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from soak.export.snapshot import Snapshot
from soak.export.terminal import Terminal
from soak.run.soaking import SoakRun
from soak.shards.task import ShardTask

_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a shard is. port: where its /metrics is served, 0 for nowhere; logs: natural, of evidence."""

    verdict: str
    asked: int
    delivered: int
    in_flight: int
    probes_valid: int
    probes_invalid: int
    port: int
    log_sum: float | None
    log_bar: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class _Told(Terminal):
    """Hands on what a person would have been shown."""

    def __init__(self, say: Callable[[str], None], progress: Callable[[Progress], None]) -> None:
        super().__init__(io.StringIO(), quiet=True, live=False)
        self._tell, self._progress = say, progress
        self._next_s = float("-inf")
        self.port: Callable[[], int] = lambda: 0

    def say(self, text: str) -> None:
        self._tell(text)

    def show(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _EVERY_S
        self._progress(
            Progress(
                verdict=snapshot.verdict.value,
                asked=snapshot.asked,
                delivered=snapshot.delivered,
                in_flight=snapshot.in_flight,
                probes_valid=snapshot.probes_valid,
                probes_invalid=sum(snapshot.probes_invalid.values()) + snapshot.victims_evicted,
                port=self.port(),
                log_sum=snapshot.log_evidence,
                log_bar=snapshot.log_bar,
            )
        )


async def run_shard(
    task: ShardTask,
    stop: asyncio.Event,
    *,
    say: Callable[[str], None],
    progress: Callable[[Progress], None],
) -> dict[str, Any]:
    """Soak one shard until its time is over or ``stop`` is set; its summary, which is also in its folder.

    Raises what ``SoakRun.run`` raises.
    """
    screen = _Told(say, progress)
    run = SoakRun(
        task.config, task.out, screen, command=task.command, resume=task.resume, examined=task.target
    )
    screen.port = lambda: run.metrics_port
    return await run.run(stop)
