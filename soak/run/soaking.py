"""A run from first look to verdict: prepare, drive and probe side by side, wind down, conclude.

Holds no rule of its own: what to send is the plan's, whether a pass is good the oracle's,
what it proves the detectors'.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from soak import __version__
from soak.config import Config, ConfigError
from soak.drive.beside_others import BESIDE_OTHERS
from soak.drive.conjunctions import CONJUNCTIONS
from soak.export.exposition import Exposition
from soak.export.snapshot import take_snapshot
from soak.export.summary import LoadCount, RunFacts, build_summary, write_atomically
from soak.export.terminal import Terminal
from soak.plan.spec import PLAN_VERSION
from soak.run.alarms_api import AlarmsApi
from soak.run.annotating import annotated
from soak.run.connecting import client_for, refuse_if_busy, unless_stopped
from soak.run.exit_code import exit_code
from soak.run.identity import Identity, identify
from soak.run.interruptions import gap_facts, gap_words, late_words
from soak.run.journalling import journalled
from soak.run.parts import Parts, wire
from soak.run.probing import Probing
from soak.run.resuming import earlier
from soak.run.server_record import ServerRecord
from soak.run.thresholds import LoadLimits, load_failures
from soak.run.trail import Trail
from soak.sglang.preflight import Target, examine
from soak.store.database import StateUnusable, Store

_TICK_S = 0.5
_KILL_S = 1.0  # a stop leaves nothing running on the server after this


class SoakRun:
    """One run on one target; ``command`` is what somebody types to run the same plan again.

    resume: go on with the run in ``out`` if there is one. Raises ConfigError for a config that names what
    does not exist.
    """

    def __init__(
        self, config: Config, out: Path, screen: Terminal, *, command: str = "", resume: bool = False
    ) -> None:
        shapes = config.spec_shapes
        known = BESIDE_OTHERS if config.load.none else CONJUNCTIONS
        reached_by = {c.name: c.reached_by for c in known}
        for name in config.detect.require_coverage or ():
            if name not in reached_by:
                raise ConfigError(
                    f"detect.require_coverage: no such conjunction {name!r}; "
                    f"there are {', '.join(reached_by)}"
                )
            if not config.load.none and reached_by[name] not in shapes:
                raise ConfigError(
                    f"detect.require_coverage: {name} is reached by the shape {reached_by[name]}, which "
                    "load.shapes leaves out; give it a weight, or do not require it"
                )
        self._config, self._out, self._screen, self._command = config, out, screen, command
        self._resume = resume
        self._registry = CollectorRegistry()
        self._winding_down = False

    async def run(self, stop: asyncio.Event) -> dict[str, Any]:
        """Soak until the duration is over, the target is lost or ``stop`` is set.

        Returns the summary, which is also in ``out``/summary.json. Raises ConfigError for a state file or a
        token that cannot be used, TargetUnusable or Interrupted before any load, MetricsUnavailable if
        /metrics cannot be served, OSError if the folder cannot be written.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        try:
            store = Store(self._config.run.state)
        except StateUnusable as error:
            raise ConfigError(f"run.state: {error}") from error
        try:
            return await self._run(stop, store, self._config.metrics.token())
        except StateUnusable as error:
            raise ConfigError(f"run.state: {error}") from error
        finally:
            store.close()

    async def _run(self, stop: asyncio.Event, store: Store, token: str | None) -> dict[str, Any]:
        config = self._config
        config.grafana.token()  # a mistake in it is said before anything is sent
        mended = ServerRecord.of(config)
        before = earlier(config, self._out) if self._resume else None
        async with client_for(config) as client:
            if before is not None:
                taken = await unless_stopped(before.take_back(client), stop)
                self._screen.say(
                    f"resuming run {before.run['run_id']}: {taken} rids of its process taken back"
                )
            target = mended.join(await unless_stopped(examine(client), stop))
            refuse_if_busy(config, target)
            nonce = config.run.nonce if before is None else before.nonce
            identity = identify(config.run.seed, nonce, config.resolve(target.geometry))
            first = 0
            if before is not None:
                before.refuse_another(identity)
                first = before.first_index(config, self._out)
            (self._out / "summary.json").unlink(missing_ok=True)  # an earlier run's is no verdict on this one
            probes = 0 if before is None else before.left.probe
            trail = Trail(self._out, identity.run_id, self._screen.say, index=first - 1, probe=probes)
            left_on_server = -1
            try:
                write_atomically(self._out / "run.json", identity.as_dict())
                for note in target.notes:
                    self._screen.say(note)
                with journalled(config, target, identity, self._out, self._screen.say) as journal:
                    parts = wire(
                        config,
                        client,
                        target,
                        identity,
                        store=store,
                        registry=self._registry,
                        say=self._screen.say,
                        journal=journal,
                        trail=trail,
                    )
                    parts.desk.probes = max(parts.desk.probes, probes)
                    parts.record.metrics.set_runner_fixes(mended.states)
                    exposition = await self._expose(target, parts, token)
                    try:
                        async with annotated(config.grafana, parts.desk, parts.record):
                            return await self._soak(parts, stop, target, identity, trail, first)
                    finally:
                        left_on_server = await parts.session.abort_outstanding(_KILL_S)
                        if exposition is not None:
                            await exposition.stop()
                        parts.desk.close()
            finally:
                trail.close(left_on_server)

    async def _expose(self, target: Target, parts: Parts, token: str | None) -> Exposition | None:
        parts.record.metrics.set_build_info(
            __version__, str(PLAN_VERSION), target.fingerprint.digest(), target.simulator
        )
        parts.record.metrics.run_started(time.time())  # a first scrape must see no run that began in 1970
        parts.record.metrics.set_target_up(True)
        if self._config.metrics.port is None:
            return None
        exposition = Exposition(
            self._registry,
            self._config.metrics.host,
            self._config.metrics.port,
            AlarmsApi(parts.desk, token).routes(),
        )
        await exposition.start()
        self._screen.say(f"metrics at {exposition.url}")
        return exposition

    async def _soak(  # noqa: PLR0917 - all of one run
        self,
        parts: Parts,
        stop: asyncio.Event,
        target: Target,
        identity: Identity,
        trail: Trail,
        first: int,
    ) -> dict[str, Any]:
        config, started, started_at = self._config, time.monotonic(), datetime.now(UTC)
        parts.record.metrics.run_started(time.time())
        probing = Probing(parts, trail.probing)
        probes = [asyncio.create_task(probing.run()) for _ in range(config.probe.concurrency)]
        drive = asyncio.create_task(
            parts.driver.run(config.run.duration, config.run.shard, config.run.shards, first)
        )
        tick = asyncio.create_task(self._tick(parts, target, started))
        lag = asyncio.create_task(parts.lateness.watch())
        keep = asyncio.create_task(parts.desk.keep())
        lost = asyncio.create_task(parts.watch.until_lost())
        stopped = asyncio.create_task(stop.wait())
        fault = asyncio.create_task(parts.driver.until_fault())
        everything: tuple[asyncio.Task[Any], ...] = (drive, tick, lag, keep, lost, stopped, fault, *probes)
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            self._winding_down = probing.winding_down = True
            whole = drive.done() and not stopped.done()
            drive.cancel()
            for task in probes:
                if not probing.inside(task):
                    task.cancel()
            await self._wind_down(parts, probes, config.run.drain if whole else 0.0, stopped)
            for task in everything:
                if task.done() and not task.cancelled():
                    task.result()  # a fault of ours ends the run with its own traceback, never a verdict
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
        parts.continuity.let_go()
        left = await parts.session.abort_outstanding(_KILL_S)
        if left:
            self._screen.say(f"{left} aborts could not be delivered: the server may still run them")
        self._show(parts, target, started)
        words = lost.result() if lost.done() and not lost.cancelled() else ""
        return self._conclude(
            parts,
            target,
            identity,
            (started_at, started_at + timedelta(seconds=time.monotonic() - started)),
            first=first,
            lost=words,
            interrupted=stop.is_set(),
        )

    async def _wind_down(
        self,
        parts: Parts,
        probes: list[asyncio.Task[None]],
        drain_s: float,
        stopped: asyncio.Task[Any],
    ) -> None:
        """Let what is in flight finish for at most ``drain_s``; an interruption ends the wait."""
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

    async def _tick(self, parts: Parts, target: Target, started: float) -> None:
        while True:
            self._show(parts, target, started)
            await asyncio.sleep(_TICK_S)

    def _show(self, parts: Parts, target: Target, started: float) -> None:
        """Refresh what people and Prometheus see."""
        record, driver = parts.record, parts.driver
        if record.journal is not None:
            record.journal.server_said(parts.watch.latest)
            record.journal.tick()
            record.metrics.set_journal(record.journal.written, record.journal.dropped, record.journal.bytes)
        record.coverage.observe_server(parts.watch.latest, parts.session.prompts_in_flight)
        report, coverage, (verdict, _) = record.detector.report(), record.coverage.report(), record.verdict()
        probing = max(0, parts.session.prompts_in_flight - driver.in_flight)
        record.metrics.set_report(report, parts.desk.muted())
        if self._config.run.state is not None:
            record.metrics.set_state_saved(parts.desk.saved_s)
        record.metrics.set_verdict(verdict)
        record.metrics.set_coverage(coverage)
        record.metrics.set_load(driver.asked, driver.delivered, driver.undelivered)
        record.metrics.set_in_flight(driver.in_flight, probing)
        for budget, used in parts.budget.used_ratios().items():
            record.metrics.set_budget_used(budget, used)
        if self._config.budget.in_flight is not None:
            in_flight = driver.in_flight + probing
            record.metrics.set_budget_used("in-flight", in_flight / self._config.budget.in_flight)
        gone = parts.continuity.gone
        record.metrics.set_target_up(not gone and parts.watch.silent_s < self._config.stop.lost_after / 2)
        record.metrics.set_gaps(
            Counter(gap.restarted for gap in parts.continuity.gaps), parts.continuity.all_gone_s
        )
        phase = f"server gone for {parts.continuity.gone_s:.0f} s" if gone else ""
        self._screen.show(
            take_snapshot(
                record.tally,
                report,
                coverage,
                elapsed_s=time.monotonic() - started,
                duration_s=self._config.run.duration,
                target=self._config.target.url,
                seed=self._config.run.seed,
                asked=driver.asked,
                delivered=driver.delivered,
                in_flight=driver.in_flight,
                verdict=verdict,
                phase="winding down" if self._winding_down else phase,
                simulator=target.simulator,
                events=tuple(record.events),
            )
        )

    def _conclude(
        self,
        parts: Parts,
        target: Target,
        identity: Identity,
        times: tuple[datetime, datetime],
        *,
        first: int,
        lost: str,
        interrupted: bool,
    ) -> dict[str, Any]:
        record, driver, limits = parts.record, parts.driver, self._config.thresholds
        verdict, reasons = record.verdict()
        failures = load_failures(
            record.load_figures(driver.asked, driver.delivered, dict(driver.undelivered)),
            LoadLimits(limits.delivered_share, limits.error_share, limits.ttft_p99, limits.latency_p99),
        )
        code = exit_code(verdict, interrupted=interrupted, lost=bool(lost), load_failures=failures)
        if lost:
            reasons = [*reasons, f"target lost: {lost}"]
        reasons = [*reasons, *gap_words(parts.continuity, record.tally), *late_words(record.tally)]
        summary = build_summary(
            RunFacts(
                target=self._config.target.url,
                seed=identity.seed,
                nonce=identity.nonce,
                plan_version=PLAN_VERSION,
                spec_digest=identity.spec.digest(),
                soak_version=__version__,
                simulator=target.simulator,
                fingerprint=target.fingerprint.as_dict(),
                replay_command=self._command,
            ),
            verdict=verdict,
            exit_code=int(code),
            reasons=[*reasons, *parts.desk.notes(), *failures],
            report=record.detector.report(),
            coverage=record.coverage.report(),
            tally=record.tally,
            load=LoadCount(driver.asked, driver.delivered, dict(driver.undelivered)),
            started_at=times[0],
            ended_at=times[1],
            interrupted=interrupted,
            alarm_facts=parts.desk.facts(),
            journal=None if record.journal is None else record.journal.facts(),
            first_index=first,
            gaps=[gap_facts(gap) for gap in parts.continuity.all_gaps()],
        )
        try:
            write_atomically(self._out / "summary.json", summary)
        except OSError as error:  # a full disk must not cost the verdict: it is shown all the same
            unwritten = f"{self._out / 'summary.json'} could not be written: {error.strerror or error}"
            summary["reasons"].append(unwritten)
            self._screen.say(unwritten)
        return summary
