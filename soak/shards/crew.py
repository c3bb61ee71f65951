"""All shards of a run on this machine: looked at once, started, watched, gone on with, stopped, told as one.

It drives nothing and judges no probe: every shard is a whole run on its share. What it must never do is leave
a worker, or a worker's requests, behind.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from soak.config import Config, ConfigError
from soak.export.closing import counts
from soak.export.exposition import Exposition, MetricsUnavailable
from soak.export.summary import SUMMARY_NAME, write_atomically
from soak.export.terminal import Terminal
from soak.run.connecting import Interrupted, unless_stopped
from soak.run.identity import Identity
from soak.run.sharing import own_share
from soak.run.trail import PreflightTrail
from soak.sglang.preflight import Target, TargetUnusable
from soak.shards.alarms import AlarmsOfShards
from soak.shards.exposed import EvidenceGauges, ShardMetrics
from soak.shards.leftovers import take_back
from soak.shards.looking import look_at_all, whole_identity
from soak.shards.shard import Progress
from soak.shards.task import ShardTask, tasks
from soak.shards.together import Sum, sum_of, told_of_shards
from soak.shards.worker import Ended, Worker

MOST_RESTARTS = 5
"""A shard whose worker dies more often than this is lost."""

_SHOW_S = 1.0

_RAISED: dict[str, type[Exception]] = {
    "ConfigError": ConfigError,
    "TargetUnusable": TargetUnusable,
    "MetricsUnavailable": MetricsUnavailable,
    "Interrupted": Interrupted,
}


class Hired(Protocol):
    """A worker, wherever it runs: see ``Worker``."""

    @property
    def pid(self) -> int | None:
        """Of its process, if that is on this machine."""

    @property
    def port(self) -> int:
        """Where it serves its metrics on this machine, 0 for nowhere."""

    async def run(self) -> Ended:
        """Start it and listen until it has ended."""

    def page(self) -> str | None:
        """Its metrics; blocks."""

    def stop(self) -> None:
        """Let it end: it takes its requests back and tells its summary."""


Hire = Callable[[ShardTask, Callable[[str], None], Callable[[Progress], None]], Hired]


class Crew:
    """Runs ``config.run.shards`` workers. Like ``SoakRun``: ``run`` gives the summary, also in ``out``.

    hire: makes the worker of a task; by default a process of this machine.
    """

    def __init__(
        self,
        config: Config,
        out: Path,
        screen: Terminal,
        *,
        command: str = "",
        resume: bool = False,
        hire: Hire = Worker,
    ) -> None:
        for shard in range(config.run.shards):
            run = config.run.model_copy(update={"shard": shard})
            own_share(config.model_copy(update={"run": run}))  # a budget that does not reach is said at once
        self._config, self._out, self._screen, self._command = config, out, screen, command
        self._resume, self._hire = resume, hire
        self._workers: dict[int, Hired] = {}
        self._seen: dict[int, Progress] = {}
        self._restarts: dict[int, int] = {}
        self._summaries: dict[int, dict[str, Any]] = {}
        self._lost: list[str] = []
        self._peak: Sum | None = None
        self._stopping = asyncio.Event()
        self._gauges: EvidenceGauges | None = None
        self._failure: Exception | None = None

    @property
    def pids(self) -> dict[int, int | None]:
        """Process id of each shard's worker."""
        return {shard: worker.pid for shard, worker in self._workers.items()}

    async def run(self, stop: asyncio.Event) -> dict[str, Any]:
        """Soak with all shards until they are done or ``stop`` is set. Raises what ``SoakRun.run`` raises."""
        self._out.mkdir(parents=True, exist_ok=True)
        identity, targets = await self._look(stop)
        config = self._config.model_copy(
            update={"run": self._config.run.model_copy(update={"nonce": identity.nonce})}
        )
        (self._out / SUMMARY_NAME).unlink(missing_ok=True)
        write_atomically(self._out / "run.json", identity.as_dict())
        wanted = tasks(config, self._out, targets, self._command)
        exposition = await self._expose([task.number for task in wanted])
        watching = asyncio.create_task(self._watch(stop))
        try:
            await asyncio.gather(*(self._shard(task) for task in wanted))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            if exposition is not None:
                await exposition.stop()
            if set(self._summaries) < {task.number for task in wanted}:
                await take_back(config, [t for t in wanted if t.number not in self._summaries])
        if self._failure is not None:
            raise self._failure
        sums = [] if self._peak is None else [self._peak]
        summary = told_of_shards(
            list(self._summaries.values()), sums=sums, lost=self._lost, interrupted=stop.is_set()
        )
        summary["replay_command"] = self._command
        write_atomically(self._out / SUMMARY_NAME, summary)
        return summary

    async def _look(self, stop: asyncio.Event) -> tuple[Identity, list[Target]]:
        preflight = PreflightTrail(self._out, self._screen.say)
        targets = await unless_stopped(look_at_all(self._config, preflight, self._screen.say), stop)
        return whole_identity(self._config, self._out, targets, resume=self._resume), targets

    async def _shard(self, task: ShardTask) -> None:
        """One shard until it has told its summary; gone on with by a new worker if its worker dies."""
        number = task.number
        if self._resume:
            task = task.again()
        while True:
            worker = self._workers[number] = self._hire(
                task,
                lambda text: self._screen.say(f"shard {number}: {text}"),
                lambda seen: self._progress(number, seen),
            )
            if self._stopping.is_set():
                worker.stop()
            ended = await worker.run()
            if ended.summary is not None:
                self._summaries[number] = ended.summary
                return
            if not ended.died:
                self._failed(number, ended)
                return
            how = f"killed by signal {-ended.code}" if ended.code < 0 else f"ended with code {ended.code}"
            self._seen.pop(number, None)
            if self._stopping.is_set() or self._restarts.get(number, 0) >= MOST_RESTARTS:
                self._lost.append(f"shard {number}: its worker was {how}, and nobody went on with it")
                return
            self._restarts[number] = self._restarts.get(number, 0) + 1
            self._screen.say(f"shard {number}: its worker was {how}; gone on with from its journal")
            task = task.again()

    def _failed(self, number: int, ended: Ended) -> None:
        """A shard that says why it cannot go on: the others are stopped, and the run ends with that."""
        if ended.kind == "Interrupted" and self._stopping.is_set():
            self._lost.append(f"shard {number}: stopped before it had sent anything")
            return
        self._stop_all()
        self._failure = self._failure or _RAISED.get(ended.kind, RuntimeError)(
            f"shard {number}: {ended.words}"
        )

    # Watching

    def _progress(self, number: int, seen: Progress) -> None:
        self._seen[number] = seen
        now = sum_of((each.log_sum, each.log_bar) for each in self._seen.values())
        if now is None or now.log_peak is None:
            return
        if self._gauges is not None:
            self._gauges.set(now.log_peak)
        before = self._peak
        if before is None or before.log_peak is None or now.log_peak > before.log_peak:
            self._peak = now
            if now.reached and not (before is not None and before.reached):
                self._screen.say("the evidence of all shards together has reached the bar")

    async def _watch(self, stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stopped.done():
                self._screen.status(self._line())
                await asyncio.wait({stopped}, timeout=_SHOW_S)
        finally:
            stopped.cancel()
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping.set()
        for worker in self._workers.values():
            worker.stop()

    def _line(self) -> str:
        seen = list(self._seen.values())
        verdicts: dict[str, int] = {}
        for each in seen:
            verdicts[each.verdict] = verdicts.get(each.verdict, 0) + 1
        delivered, asked = sum(s.delivered for s in seen), sum(s.asked for s in seen)
        return (
            f"{len(seen)} of {self._config.run.shards} shards: {counts(verdicts) or 'starting'} | probes "
            f"{sum(s.probes_valid for s in seen):,} valid, {sum(s.probes_invalid for s in seen):,} invalid | "
            f"load {delivered:,}/{asked:,}, {sum(s.in_flight for s in seen):,} in flight"
        )

    async def _expose(self, numbers: list[int]) -> Exposition | None:
        metrics = self._config.metrics
        if metrics.port is None:
            return None

        def ports() -> dict[int, int]:
            return {n: self._workers[n].port if n in self._workers else 0 for n in numbers}

        def pages() -> dict[int, Callable[[], str | None]]:
            return {n: self._workers[n].page if n in self._workers else _nothing for n in numbers}

        registry = CollectorRegistry()
        self._gauges = EvidenceGauges(registry, math.log(self._config.run_length))
        registry.register(ShardMetrics(pages, self._restarts))
        exposition = Exposition(registry, metrics.host, metrics.port, AlarmsOfShards(ports).routes())
        await exposition.start()
        self._screen.say(f"metrics at {exposition.url}")
        return exposition


def _nothing() -> None:
    return None
