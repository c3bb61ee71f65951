"""One server, soaked from its first prompt until the run is over or another server answers in its place.

Drives and probes side by side, winds down, concludes about that server alone. Holds no rule of its own: what
to send is the plan's, whether a pass is good the oracle's, what it proves the detectors'.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from soak import __version__
from soak.config import Config
from soak.export.course_file import CourseFile
from soak.export.snapshot import take_snapshot
from soak.export.summary import LoadCount, RunFacts, build_summary
from soak.export.terminal import Terminal
from soak.incident import target_lost
from soak.plan.spec import PLAN_VERSION
from soak.run.exit_code import exit_code
from soak.run.identity import Identity
from soak.run.interruptions import gap_facts, gap_words, late_words
from soak.run.parts import Parts
from soak.run.probing import Probing
from soak.run.thresholds import LoadLimits, load_failures
from soak.sglang.preflight import Target

_TICK_S = 0.5
KILL_S = 1.0
"""A stop leaves nothing running on the server after this."""


class Beside(Protocol):
    """Works beside load and probes, on their parts; the run ends when it has ended."""

    async def run(self, parts: Parts, target: Target) -> None:
        """Until it is done. Cancelled, it puts in order what it did, and the run waits for that."""


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What a run is, over all its servers. began_s: of ``time.monotonic()``; command: runs it again; course:
    what is kept of it for a report; beside: an experiment, if there is one."""

    config: Config
    identity: Identity
    screen: Terminal
    command: str
    began_s: float
    course: CourseFile
    beside: Beside | None = None


class Stretch:
    """``parts`` on ``target`` from index ``first`` on. on_probe: told of each probe's number."""

    def __init__(
        self, whole: WholeRun, parts: Parts, target: Target, first: int, on_probe: Callable[[int], None]
    ) -> None:
        self._whole, self._parts, self._target, self._first = whole, parts, target, first
        self._on_probe = on_probe
        self._winding_down = False
        self._course = parts.record.course = whole.course.course
        self._course.another_server()
        self._started_at = self._ended_at = datetime.now(UTC)

    async def soak(self, stop: asyncio.Event) -> str:
        """Until the duration is over, ``stop`` is set, or the server is lost or another: then in words."""
        config, parts, started = self._whole.config, self._parts, time.monotonic()
        self._started_at = datetime.now(UTC)
        parts.record.metrics.run_started(time.time())
        probing = Probing(parts, self._on_probe, shard=config.run.shard, shards=config.run.shards)
        probes = [asyncio.create_task(probing.run()) for _ in range(config.probe.concurrency)]
        drive = asyncio.create_task(
            parts.driver.run(config.run.duration, config.run.shard, config.run.shards, self._first)
        )
        tick = asyncio.create_task(self._tick())
        written = asyncio.create_task(self._whole.course.keep(lambda: self._so_far(started)))
        lag = asyncio.create_task(parts.lateness.watch())
        keep = asyncio.create_task(parts.desk.keep())
        lost = asyncio.create_task(parts.watch.until_lost())
        stopped = asyncio.create_task(stop.wait())
        fault = asyncio.create_task(parts.driver.until_fault())
        everything: list[asyncio.Task[Any]] = [
            drive, tick, written, lag, keep, lost, stopped, fault, *probes,
        ]  # fmt: skip
        ends = [drive]
        if self._whole.beside is not None:
            ends.append(asyncio.create_task(self._whole.beside.run(parts, self._target)))
            everything.append(ends[-1])
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            self._winding_down = probing.winding_down = True
            whole = any(task.done() for task in ends) and not stopped.done()
            drive.cancel()
            for task in probes:
                if not probing.inside(task):
                    task.cancel()
            await self._wind_down(probes, config.run.drain if whole else 0.0, stopped)
            for task in everything:
                if task.done() and not task.cancelled():
                    task.result()  # a fault of ours ends the run with its own traceback, never a verdict
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
        parts.continuity.let_go()
        left = await parts.session.abort_outstanding(KILL_S)
        if left:
            self._whole.screen.say(f"{left} aborts could not be delivered: the server may still run them")
        self._show()
        self._ended_at = self._started_at + timedelta(seconds=time.monotonic() - started)
        return self._lost(lost.result()) if lost.done() and not lost.cancelled() else ""

    def _lost(self, words: str) -> str:
        """Why it ended; where nothing answers any more, what was under way is kept as an incident."""
        parts = self._parts
        if not parts.continuity.gone or parts.record.journal is None:
            return words
        kept = target_lost.gone(
            self._target.fingerprint.digest(), time.time() - parts.continuity.gone_s, f"{words}."
        )
        parts.record.journal.alarm(kept)
        return f"{words}; what was under way then: soak incidents show {kept.id}"

    async def _wind_down(
        self, probes: list[asyncio.Task[None]], drain_s: float, stopped: asyncio.Task[Any]
    ) -> None:
        """Let what is in flight finish for at most ``drain_s``; an interruption ends the wait."""
        parts = self._parts
        drain = asyncio.create_task(parts.driver.drain(drain_s))
        waiting: set[asyncio.Task[Any]] = {drain, *probes}
        deadline = time.monotonic() + drain_s
        while waiting and not stopped.done() and (rest := deadline - time.monotonic()) > 0:
            _, pending = await asyncio.wait(
                {*waiting, stopped}, timeout=rest, return_when=asyncio.FIRST_COMPLETED
            )
            waiting &= pending
        drain.cancel()
        for task in probes:
            task.cancel()
        await asyncio.gather(drain, *probes, return_exceptions=True)
        await parts.driver.drain(0.0)

    async def _tick(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(_TICK_S)

    def _show(self) -> None:
        """Refresh what people and Prometheus see."""
        config, parts = self._whole.config, self._parts
        record, driver = parts.record, parts.driver
        if record.journal is not None:
            record.journal.server_said(parts.watch.latest)
            record.journal.tick()
            record.metrics.set_journal(record.journal.written, record.journal.dropped, record.journal.bytes)
        record.coverage.observe_server(parts.watch.latest, parts.watch.ours)
        report, coverage, (verdict, _) = record.detector.report(), record.coverage.report(), record.verdict()
        probing = max(0, parts.session.prompts_in_flight - driver.in_flight)
        record.metrics.set_report(report, parts.desk.muted())
        if config.run.state is not None:
            record.metrics.set_state_saved(parts.desk.saved_s)
        record.metrics.set_verdict(verdict)
        record.metrics.set_coverage(coverage)
        record.metrics.set_load(driver.asked, driver.delivered, driver.undelivered)
        record.metrics.set_in_flight(driver.in_flight, probing)
        budgets = parts.budget.used_ratios()
        if config.budget.in_flight is not None:
            budgets["in-flight"] = (driver.in_flight + probing) / config.budget.in_flight
        for budget, used in budgets.items():
            record.metrics.set_budget_used(budget, used)
        gone = parts.continuity.gone
        record.metrics.set_target_up(not gone and parts.watch.silent_s < config.stop.lost_after / 2)
        record.metrics.set_gaps(
            Counter(gap.restarted for gap in parts.continuity.gaps), parts.continuity.all_gone_s
        )
        self._course.sample(
            self._whole.course.at_s,
            report,
            verdict=verdict.value,
            asked=driver.asked,
            delivered=driver.delivered,
            in_flight=driver.in_flight,
            gone=gone,
        )
        phase = f"server gone for {parts.continuity.gone_s:.0f} s" if gone else ""
        self._whole.screen.show(
            take_snapshot(
                record.tally,
                report,
                coverage,
                elapsed_s=time.monotonic() - self._whole.began_s,
                duration_s=config.run.duration,
                target=config.target.url,
                seed=config.run.seed,
                asked=driver.asked,
                delivered=driver.delivered,
                in_flight=driver.in_flight,
                verdict=verdict,
                phase="winding down" if self._winding_down else phase,
                simulator=self._target.simulator,
                events=tuple(record.events),
                budgets=budgets,
            )
        )

    def _so_far(self, started_s: float) -> dict[str, Any]:
        """The summary as it would be now."""
        self._ended_at = self._started_at + timedelta(seconds=time.monotonic() - started_s)
        return self.conclude("", interrupted=False)

    def conclude(self, lost: str, *, interrupted: bool) -> dict[str, Any]:
        """The summary about this server. lost: why the run could not go on with any, empty if it could."""
        parts, target, identity = self._parts, self._target, self._whole.identity
        record, driver, limits = parts.record, parts.driver, self._whole.config.thresholds
        verdict, reasons = record.verdict()
        failures = load_failures(
            record.load_figures(driver.asked, driver.delivered, dict(driver.undelivered)),
            LoadLimits(limits.delivered_share, limits.error_share, limits.ttft_p99, limits.latency_p99),
        )
        code = exit_code(verdict, interrupted=interrupted, lost=bool(lost), load_failures=failures)
        if lost:
            reasons = [*reasons, f"target lost: {lost}"]
        reasons = [*reasons, *gap_words(parts.continuity, record.tally), *late_words(record.tally)]
        return build_summary(
            RunFacts(
                target=self._whole.config.target.url,
                seed=identity.seed,
                nonce=identity.nonce,
                plan_version=PLAN_VERSION,
                spec_digest=identity.spec.digest(),
                soak_version=__version__,
                simulator=target.simulator,
                fingerprint=target.fingerprint.as_dict(),
                replay_command=self._whole.command,
            ),
            verdict=verdict,
            exit_code=int(code),
            reasons=[*reasons, *parts.desk.notes(), *failures],
            report=record.detector.report(),
            coverage=record.coverage.report(),
            tally=record.tally,
            load=LoadCount(driver.asked, driver.delivered, dict(driver.undelivered)),
            started_at=self._started_at,
            ended_at=self._ended_at,
            interrupted=interrupted,
            alarm_facts=parts.desk.facts(),
            journal=None if record.journal is None else record.journal.facts(),
            first_index=self._first,
            gaps=[gap_facts(gap) for gap in parts.continuity.all_gaps()],
        )
