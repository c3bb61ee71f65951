"""Calibration beforehand: controls of every resume kind, alone and under a little load, until all hold.

The load is the config's own plan, held to a low rate and to shapes that disturb nobody; it plants the
prefixes whose writing the controls copy. It keeps what it learns in the state file as it goes. It gives no
verdict on a cache, but a server that is seen to be corrupt must not teach what is normal: then it stops.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from itertools import cycle, islice
from typing import Any

from prometheus_client import CollectorRegistry

from soak.config import Config, ConfigError
from soak.export.learnt import Learnt, progress_line
from soak.export.terminal import Terminal
from soak.oracle.probe import RESUMES, ProbeResult, ResumeKind
from soak.oracle.prober import Standalone
from soak.plan.item import WrittenBy
from soak.plan.plan import Plan
from soak.plan.shapes import DISRUPTIVE
from soak.run.connecting import client_for, refuse_if_busy, unless_stopped
from soak.run.identity import identify
from soak.run.parts import Parts, wire
from soak.run.probing import believed
from soak.run.server_record import ServerRecord
from soak.sglang.preflight import Target, examine
from soak.store.database import StateUnusable, Store

LITTLE_RATE = 2.0
"""Plan indices a second at most; a config that asks for less gets less."""

_TICK_S = 0.25
_KILL_S = 1.0
_SPELL = 12  # controls and probes until load is held back, or let go again
_PROBE_EVERY = 8  # for the ceilings: one number in so many is a whole probe
_REPEAT_EVERY = 3  # the same while repeated cold passes are missing
_LOOKED_AT = 500  # indices of the plan, for the resume kinds that it can leave behind
_PATIENCE = 25  # controls of a kind that could not be made, one after the other
_WITHOUT = 400  # prompts delivered of a load that has written no prefix of a kind

_WRITTEN_BY = {ResumeKind.PREFILL: WrittenBy.PREFILL, ResumeKind.DECODE: WrittenBy.DECODE}


def for_calibration(config: Config) -> Config:
    """The config with a little load, and with no share of that load for probes to keep to.

    All other budgets stay. Raises ConfigError where nothing is left to send, or nothing to keep it in.
    """
    if config.run.state is None:
        raise ConfigError(
            "run.state: a calibration must be kept in something; name a file, with --state FILE or in the "
            "config. A `soak run --state` of the same file then starts calibrated"
        )
    shapes = {name: weight for name, weight in config.load.shapes.items() if name not in DISRUPTIVE}
    if not config.load.none and not any(shapes.values()):
        raise ConfigError(
            f"load.shapes: {', '.join(sorted(DISRUPTIVE))} disturb others and plant nothing that a control "
            "copies; give another shape a weight"
        )
    load = config.load
    if not load.none:
        load = load.model_copy(update={"rate": min(load.rate, LITTLE_RATE), "shapes": shapes})
    budget = config.budget.model_copy(update={"probe_share": None})
    return config.model_copy(update={"load": load, "budget": budget})


def kinds_planted(plan: Plan) -> set[ResumeKind]:
    """Resume kinds whose prefixes the plan leaves behind."""
    written = {items[0].written_by for items in islice(plan.walk(), _LOOKED_AT)}
    return {kind for kind, by in _WRITTEN_BY.items() if by in written}


class CalibrationRun:
    """One calibration of one server. within_s: stop after so long, None for when all is learned.

    Raises ConfigError as ``for_calibration``.
    """

    def __init__(self, config: Config, screen: Terminal, *, within_s: float | None = None) -> None:
        self._config, self._screen, self._within_s = for_calibration(config), screen, within_s
        self._given_up: dict[ResumeKind, str] = {}
        self._refusals: Counter[ResumeKind] = Counter()
        self._kinds: set[ResumeKind] = set()
        self._phase = ""
        self._left = 0
        self._tokens = 0

    async def run(self, stop: asyncio.Event) -> Learnt:
        """Calibrate until all kinds hold, nothing more can be done, time is up or ``stop`` is set.

        Raises ConfigError for a state file that cannot be used, TargetUnusable or Interrupted before any
        load.
        """
        try:
            store = Store(self._config.run.state)
        except StateUnusable as error:
            raise ConfigError(f"run.state: {error}") from error
        try:
            return await self._run(stop, store)
        except StateUnusable as error:
            raise ConfigError(f"run.state: {error}") from error
        finally:
            store.close()

    async def _run(self, stop: asyncio.Event, store: Store) -> Learnt:
        config = self._config
        mended = ServerRecord.of(config)
        async with client_for(config) as client:
            target = mended.join(await unless_stopped(examine(client), stop))
            refuse_if_busy(config, target)
            identity = identify(config.run.seed, config.run.nonce, config.resolve(target.geometry))
            self._kinds = kinds_planted(Plan(identity.seed, identity.spec, identity.nonce))
            for note in target.notes:
                self._screen.say(note)
            parts = wire(
                config,
                client,
                target,
                identity,
                store=store,
                registry=CollectorRegistry(),
                say=self._screen.say,
            )
            try:
                return await self._calibrate(parts, stop, target)
            finally:
                await parts.session.abort_outstanding(_KILL_S)
                parts.desk.close()

    async def _calibrate(self, parts: Parts, stop: asyncio.Event, target: Target) -> Learnt:
        started, before = time.monotonic(), set(parts.record.detector.alarms)
        work = asyncio.create_task(self._spells(parts, before))
        lost = asyncio.create_task(parts.watch.until_lost())
        stopped = asyncio.create_task(stop.wait())
        everything: tuple[asyncio.Task[Any], ...] = (
            work,
            lost,
            stopped,
            asyncio.create_task(parts.driver.run(math.inf)),
            asyncio.create_task(parts.driver.until_fault()),
            asyncio.create_task(parts.desk.keep()),
            asyncio.create_task(self._tell(parts, started)),
        )
        try:
            await asyncio.wait(everything, timeout=self._within_s, return_when=asyncio.FIRST_COMPLETED)
            for task in everything:
                if task.done():
                    task.result()  # a fault of ours ends the calibration with its own traceback
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await parts.driver.drain(0.0)
        return Learnt(
            report=parts.record.detector.report(),
            fingerprint=target.fingerprint.digest(),
            simulator=target.simulator,
            missing=self._missing(parts),
            beyond=self._beyond(parts),
            alarms=tuple(a for a in parts.record.detector.alarms if a not in before),
            facts=parts.desk.facts(),
            lost=lost.result() if lost.done() and not lost.cancelled() else "",
            interrupted=stop.is_set(),
            seconds=time.monotonic() - started,
            tokens=self._tokens + parts.driver.tokens_prefilled,
        )

    # What is still to be learned

    def _settled(self, parts: Parts, kind: ResumeKind) -> bool:
        detector = parts.record.detector
        if kind in self._given_up:
            return True
        return not detector.wants_control(kind) and not detector.exact_may_come(kind)

    def _wanted(self, parts: Parts) -> ResumeKind | None:
        """The kind that is furthest from calibrated, among those that load has written by now."""
        detector = parts.record.detector
        open_kinds = [
            kind
            for kind in ResumeKind
            if kind in self._kinds
            and parts.record.victims.has(_WRITTEN_BY[kind])
            and not self._settled(parts, kind)
        ]
        return max(open_kinds, key=detector.controls_missing, default=None)

    def _done(self, parts: Parts, before: set[Any]) -> bool:
        detector = parts.record.detector
        if not before.issuperset(detector.alarms):
            return True
        for kind in self._kinds - self._given_up.keys():
            if not parts.record.victims.has(_WRITTEN_BY[kind]) and parts.driver.delivered >= _WITHOUT:
                self._given_up[kind] = f"{parts.driver.delivered} prompts of load have left no such prefix"
        if not all(self._settled(parts, kind) for kind in self._kinds):
            return False
        return self._kinds <= self._given_up.keys() or not detector.wants_cold_repeat()

    def _missing(self, parts: Parts) -> dict[str, str]:
        """Wanted kinds that are not calibrated, each with the reason."""
        detector = parts.record.detector
        return {
            kind.value: self._given_up.get(kind)
            or f"{detector.controls_missing(kind):,} more controls are wanted, at least"
            for kind in ResumeKind
            if kind in self._kinds and detector.wants_control(kind)
        }

    def _beyond(self, parts: Parts) -> dict[str, str]:
        """Kinds that nobody wanted controls of, each with the reason."""
        return {
            kind.value: "none of load.shapes leaves such a prefix behind"
            if kind.controllable
            else "no control can copy such a resume; evidence never judges it"
            for kind in RESUMES
            if kind not in self._kinds and parts.record.detector.wants_control(kind)
        }

    # Making controls

    async def _spells(self, parts: Parts, before: set[Any]) -> None:
        """Turn by turn under load and alone, so that both halves of the controls know both."""
        for loaded in cycle((True, False)):
            self._phase = "under load" if loaded else "alone"
            parts.brake.held = None if loaded else "calibrating-alone"
            while not loaded and parts.session.prompts_in_flight:  # noqa: ASYNC110 - nobody says when it is quiet
                await asyncio.sleep(_TICK_S / 5)
            self._left = _SPELL
            async with asyncio.TaskGroup() as group:
                for _ in range(self._config.probe.concurrency if loaded else 1):
                    group.create_task(self._worker(parts, before, loaded))
            if self._done(parts, before):
                return

    async def _worker(self, parts: Parts, before: set[Any], loaded: bool) -> None:
        while self._left > 0 and not self._done(parts, before):
            await parts.budget.wait()
            if parts.brake.pressure is not None:
                await asyncio.sleep(_TICK_S)
                continue
            number, kind = parts.desk.probes + 1, self._wanted(parts)
            probes = self._probes(parts, number, kind)
            if kind is None and not probes:
                if not loaded:
                    return  # only load can write what is missing
                await asyncio.sleep(_TICK_S)
                continue
            self._left -= 1
            parts.desk.probes = number
            epoch = parts.continuity.epoch
            if probes or kind is None:
                result: ProbeResult | Standalone | None = await parts.prober.probe(number)
            else:
                result = await parts.prober.control(number, kind)
            if result is None:
                continue
            self._tokens += result.tokens_spent
            if await believed(result, parts.continuity, epoch):
                self._take(parts, result)
            else:
                parts.budget.spend(result.tokens_spent)

    def _probes(self, parts: Parts, number: int, kind: ResumeKind | None) -> bool:
        """Whether this number is a probe: it brings repeated cold passes, and what ceilings look at."""
        if not len(parts.record.victims):
            return False
        if parts.record.detector.wants_cold_repeat():
            return kind is None or number % _REPEAT_EVERY == 0
        return number % _PROBE_EVERY == 0

    def _take(self, parts: Parts, result: ProbeResult | Standalone) -> None:
        if isinstance(result, ProbeResult):
            if result.valid:
                parts.watch.alive()
            parts.budget.record(result)
            parts.record.observe_probe(result)
            return
        parts.budget.spend(result.tokens_spent)
        parts.record.observe_control(result)
        if result.control.divergence is not None:
            parts.watch.alive()
            self._refusals[result.kind] = 0
            return
        self._refusals[result.kind] += result.tokens_spent > 0  # a server that is gone says nothing of a kind
        if self._refusals[result.kind] >= _PATIENCE:
            self._given_up[result.kind] = (
                f"{_PATIENCE} controls in a row could not be made, the last because: {result.control.note}"
            )

    async def _tell(self, parts: Parts, started: float) -> None:
        while True:
            kinds = [k for k in parts.record.detector.report().kinds if ResumeKind(k.kind) in self._kinds]
            waits = parts.budget.waiting_for or parts.brake.pressure or ""
            self._screen.status(
                progress_line(time.monotonic() - started, kinds, self._phase, self._tokens, waits)
            )
            await asyncio.sleep(_TICK_S)
