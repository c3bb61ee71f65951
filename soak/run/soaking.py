"""A run from first look to verdict: prepare, soak the server, and whichever answers in its place, conclude.

Holds no rule of its own: what to send is the plan's, whether a pass is good the oracle's,
what it proves the detectors'.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from soak import __version__
from soak.config import Config, ConfigError
from soak.drive.beside_others import BESIDE_OTHERS
from soak.drive.conjunctions import CONJUNCTIONS
from soak.export.course_file import CourseFile
from soak.export.exposition import Exposition
from soak.export.summary import SUMMARY_NAME, write_atomically
from soak.export.terminal import Terminal
from soak.plan.spec import PLAN_VERSION
from soak.run.alarms_api import AlarmsApi
from soak.run.annotating import annotated
from soak.run.connecting import Interrupted, client_for, refuse_if_busy, unless_stopped
from soak.run.event_loop import quiet_collector
from soak.run.identity import identify
from soak.run.journalling import journalled, public_config
from soak.run.parts import Parts, wire
from soak.run.resuming import earlier
from soak.run.server_record import ServerRecord
from soak.run.sharing import own_share, shard_facts
from soak.run.stretch import KILL_S, Beside, Stretch, WholeRun
from soak.run.succession import refuse_turns, successor, told_together
from soak.run.trail import PreflightTrail, Trail
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import Target, TargetUnusable, examine
from soak.sglang.session import Session
from soak.store.database import StateUnusable, Store


@dataclass(frozen=True, slots=True)
class _Equipment:
    """What stays the same over all servers of one run."""

    client: SGLangClient
    session: Session
    trail: Trail
    preflight: PreflightTrail
    mended: ServerRecord
    token: str | None


class SoakRun:
    """One run on one target; ``command`` is what somebody types to run the same plan again.

    resume: go on with the run in ``out`` if there is one. beside: an experiment. examined: the target, where
    somebody has looked at it for all shards of the run. Raises ConfigError for a config that names what does
    not exist, or whose budget leaves this shard too little.
    """

    def __init__(
        self,
        config: Config,
        out: Path,
        screen: Terminal,
        *,
        command: str = "",
        resume: bool = False,
        beside: Beside | None = None,
        examined: Target | None = None,
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
        self._planned = config  # the plan is of the whole run, what is spent is this shard's
        self._config, self._out, self._screen, self._command = own_share(config), out, screen, command
        self._resume, self._beside, self._examined = resume, beside, examined
        self._metrics_port = 0  # where /metrics is served, once it is

    @property
    def metrics_port(self) -> int:
        """Where /metrics is served, 0 until it is."""
        return self._metrics_port

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
        config, say = self._config, self._screen.say
        config.grafana.token()  # a mistake in it is said before anything is sent
        mended = ServerRecord.of(config)
        before = earlier(config, self._out) if self._resume else None
        preflight = PreflightTrail(self._out, say)
        async with client_for(config) as client:
            if self._resume:
                await unless_stopped(preflight.take_back(client), stop)
            if before is not None:
                alone = config.run.shards == 1  # else it is busy with what the other shards sent
                taken = await unless_stopped(before.take_back(client, settle=alone), stop)
                say(f"resuming run {before.run['run_id']}: {taken} rids of its process taken back")
            target = self._examined
            if target is None:
                target = mended.join(
                    await unless_stopped(examine(client, on_sending=preflight.sending), stop)
                )
                preflight.over()
                refuse_if_busy(config, target)
            nonce = config.run.nonce if before is None else before.nonce
            identity = identify(config.run.seed, nonce, self._planned.resolve(target.geometry))
            first = 0
            if before is not None:
                before.refuse_another(identity)
                first = before.first_index(config, self._out)
            (self._out / SUMMARY_NAME).unlink(missing_ok=True)  # an earlier run's is no verdict on this one
            probes = 0 if before is None else before.left.probe
            trail = Trail(self._out, identity.run_id, say, index=first - 1, probe=probes)
            session = Session(
                client, identity.run_id, trail.sending, token=trail.token, ranks=target.data_parallel
            )
            course = CourseFile(
                self._out, identity.run_id, public_config(config), say, resume=before is not None
            )
            whole = WholeRun(
                config, identity, self._screen, self._command, time.monotonic(), course, self._beside
            )
            equipment = _Equipment(client, session, trail, preflight, mended, token)
            left_on_server = -1
            try:
                write_atomically(self._out / "run.json", identity.as_dict())
                with quiet_collector():
                    summary = await self._through_all(whole, equipment, target, store, stop)
                left_on_server = await session.abort_outstanding(KILL_S)
            finally:
                if left_on_server < 0:
                    left_on_server = await session.abort_outstanding(KILL_S)
                trail.close(left_on_server)
        return summary

    async def _through_all(
        self, whole: WholeRun, equipment: _Equipment, target: Target, store: Store, stop: asyncio.Event
    ) -> dict[str, Any]:
        """One stretch after the other, on whatever server answers; their summaries as one."""
        summaries: list[dict[str, Any]] = []
        digests: list[str] = []
        before: Parts | None = None
        after: Target | None = target
        while after is not None:
            if summaries:
                store = Store(self._config.run.state)
            digests.append(after.fingerprint.digest())
            try:
                summary, before, after = await self._stretch(
                    whole, equipment, after, store, stop, before, digests
                )
            finally:
                store.close()
            summaries.append(summary)
        summary = told_together(summaries)
        summary["shard"] = shard_facts(self._planned, whole.identity.run_id)
        try:
            write_atomically(self._out / SUMMARY_NAME, summary)
        except OSError as error:  # a full disk must not cost the verdict: it is shown all the same
            unwritten = f"{self._out / 'summary.json'} could not be written: {error.strerror or error}"
            summary["reasons"].append(unwritten)
            self._screen.say(unwritten)
        whole.course.close(summary)
        return summary

    async def _stretch(  # noqa: PLR0917 - all of one server
        self,
        whole: WholeRun,
        equipment: _Equipment,
        target: Target,
        store: Store,
        stop: asyncio.Event,
        before: Parts | None,
        digests: list[str],
    ) -> tuple[dict[str, Any], Parts, Target | None]:
        """Soak one server: its summary, the parts it was soaked with, and who answers in its place by now."""
        config, trail, say = self._config, equipment.trail, self._screen.say
        for note in target.notes:
            say(note)
        registry = CollectorRegistry()  # of one server: what was counted on another is no part of it
        with journalled(config, target, whole.identity, self._out, say) as journal:
            parts = wire(
                config,
                equipment.client,
                target,
                whole.identity,
                store=store,
                registry=registry,
                say=say,
                journal=journal,
                trail=trail,
                session=equipment.session,
            )
            parts.desk.probes = max(parts.desk.probes, trail.left.probe)
            if before is not None:
                parts.continuity.goes_on_from(before.continuity)
            parts.record.metrics.set_runner_fixes(equipment.mended.states)
            exposition = await self._expose(registry, target, parts, equipment.token)
            try:
                async with annotated(config.grafana, parts.desk, parts.record):
                    stretch = Stretch(whole, parts, target, trail.left.index + 1, trail.probing)
                    lost = await stretch.soak(stop)
                    after = None
                    if parts.continuity.another and not stop.is_set():
                        after, lost = await self._next(whole, equipment, parts, stop, digests)
                    summary = stretch.conclude(lost, interrupted=stop.is_set())
                    summary["workers"] = parts.record.workers.rows(
                        parts.record.detector.report(), config.detect.min_valid_probes
                    )
                    return summary, parts, after
            finally:
                await parts.session.abort_outstanding(KILL_S)
                if exposition is not None:
                    await exposition.stop()
                parts.desk.close()

    async def _next(
        self,
        whole: WholeRun,
        equipment: _Equipment,
        parts: Parts,
        stop: asyncio.Event,
        digests: list[str],
    ) -> tuple[Target | None, str]:
        """The server that answers in the place of the one before, or why the run cannot go on with it."""
        another = parts.continuity.another
        self._screen.say(f"{another}: it is examined")
        asking = successor(
            equipment.client,
            self._planned,
            whole.identity.spec,
            equipment.mended.join,
            equipment.preflight.sending,
        )
        try:
            after = await unless_stopped(asking, stop)
            refuse_turns(after, digests, parts.continuity.gaps[-1])
        except Interrupted:
            return None, ""
        except (TargetUnusable, ConfigError) as error:
            return None, f"{another}; the run cannot go on with it: {error}"
        finally:
            equipment.preflight.over()
        self._screen.say(
            f"going on with the other server ({after.fingerprint.digest()}): calibration, evidence and "
            "coverage begin anew, and what was known of the first one's cache is forgotten"
        )
        return after, ""

    async def _expose(
        self, registry: CollectorRegistry, target: Target, parts: Parts, token: str | None
    ) -> Exposition | None:
        parts.record.metrics.set_build_info(
            __version__, str(PLAN_VERSION), target.fingerprint.digest(), target.simulator
        )
        parts.record.metrics.run_started(time.time())  # a first scrape must see no run that began in 1970
        parts.record.metrics.set_target_up(True)
        if self._config.metrics.port is None:
            return None
        exposition = Exposition(
            registry,
            self._config.metrics.host,
            self._metrics_port or self._config.metrics.port,
            AlarmsApi(parts.desk, token).routes(),
        )
        await exposition.start()
        if not self._metrics_port:
            self._screen.say(f"metrics at {exposition.url}")
        self._metrics_port = exposition.port
        return exposition
