"""The parts of one run, made and handed to each other. No rule of its own, and nothing starts here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from soak.config import Config, ConfigError
from soak.detect.verdict import Alarm
from soak.drive.brake import Brake, StopLimits
from soak.drive.disaggregated import cannot_apply
from soak.drive.driver import DriveLimits, Driver
from soak.drive.observation import Observation
from soak.incident.journal import Journal
from soak.oracle.budget import ProbeBudget
from soak.oracle.invariance import COMPANIONS, Invariance
from soak.oracle.prober import PassSeen, Prober, ProbeSettings
from soak.plan.adaptive import decision_of
from soak.plan.plan import Plan
from soak.run.adapting import Adapting
from soak.run.alarm_desk import AlarmDesk
from soak.run.continuity import Continuity
from soak.run.identity import Identity
from soak.run.lateness import Lateness
from soak.run.record import Record
from soak.run.trail import Trail
from soak.run.watch import ServerWatch
from soak.sglang.allowance import Allowance
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import Target, server_now
from soak.sglang.session import Session
from soak.store.database import Store

IN_FLIGHT = 256
"""Prompts at once where no budget says otherwise."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs side by side on one session."""

    session: Session
    brake: Brake
    watch: ServerWatch
    record: Record
    desk: AlarmDesk
    driver: Driver
    prober: Prober
    invariance: Invariance
    invariance_per_mille: int
    seed: int
    budget: ProbeBudget
    continuity: Continuity
    lateness: Lateness


def adaptive_plan(config: Config, identity: Identity, journal: Journal | None) -> tuple[Plan, bool]:
    """The plan with the decisions taken so far, and whether there will be no others.

    Decisions that are replayed are this run's own from now on, and journalled. Without a journal, as in a
    calibration, none is taken. Raises ConfigError for decisions that the spec does not allow.
    """
    spec, adaptive = identity.spec, config.load.adaptive
    recorded = None if adaptive is None else adaptive.recorded
    rows: Sequence[Mapping[str, Any]] = journal.decided if journal is not None else []
    try:
        taken = [decision_of(row, spec) for row in (rows if recorded is None else recorded)]
        plan = Plan(identity.seed, spec, identity.nonce, taken)
    except ValueError as error:
        raise ConfigError(f"load.adaptive: the recorded decisions cannot be followed: {error}") from error
    if journal is not None and recorded is not None:
        for decision in taken:
            journal.decision(decision)
    return plan, recorded is not None or journal is None


def wire(
    config: Config,
    client: SGLangClient,
    target: Target,
    identity: Identity,
    *,
    store: Store,
    registry: CollectorRegistry,
    say: Callable[[str], None],
    journal: Journal | None = None,
    trail: Trail | None = None,
    session: Session | None = None,
) -> Parts:
    """Make every part of one run. Alarms of earlier runs that ``store`` holds stand again from here on.

    journal: told of all that is sent and of every alarm, those of earlier runs among them. trail: told of
    what is about to be sent. session: of a run that has sent something before; a new one by default.
    """
    spec, probe = identity.spec, config.probe
    session = session or Session(client, identity.run_id)
    if journal is not None:
        session.on_paused = journal.paused
    brake = Brake(StopLimits(config.stop.queue, config.stop.token_usage, config.stop.ttft))
    record = Record(
        config,
        spec,
        nonce=identity.nonce,
        deterministic=target.deterministic,
        registry=registry,
        say=say,
    )
    record.coverage.rule_out(cannot_apply(target.fingerprint.as_dict()))
    desk = AlarmDesk(store, target.fingerprint.digest(), record.detector, record.say)
    desk.start()
    record.journal = journal
    if journal is not None:
        journal.recover(desk.standing())

    def file_alarm(alarm: Alarm) -> str:
        stored = desk.raised(alarm)
        if journal is not None:
            journal.alarm(stored)
        return stored.id

    def observe_pass(seen: PassSeen) -> None:
        if journal is not None:
            journal.observe_pass(seen)

    record.file_alarm = file_alarm

    lateness = Lateness(record.loop_lag)

    def settle(seen: Observation, in_gap: bool) -> None:
        record.observe_load(seen, late=lateness.spoiled(seen), in_gap=in_gap)

    def forget_server() -> None:
        record.another_server()
        invariance.forget()

    continuity = Continuity(
        lambda: server_now(client),
        target.now,
        brake,
        on_restart=forget_server,
        settle=settle,
        say=record.say,
        beside=target.beside,
    )
    watch = ServerWatch(session, brake, config.stop.lost_after, continuity)

    def observe(seen: Observation) -> None:
        if (seen.answer.http_status or 500) < 500:
            watch.alive()
        record.journal_load(seen)
        continuity.observe(seen)

    # probes send one request at a time each, of one prompt but for an invariance probe's batch: their places
    # are kept out of what load may fill
    most = config.budget.in_flight or IN_FLIGHT
    companions = min(COMPANIONS, max(0, most // (4 * probe.concurrency) - 1)) if probe.invariance_share else 0
    in_flight = max(1, most - probe.concurrency * (1 + companions))
    allowance = Allowance(config.budget.tokens_per_second)
    plan, fixed = adaptive_plan(config, identity, journal)
    adapting = Adapting(
        plan,
        record.detector,
        record.coverage.report,
        keep=(lambda _taken: None) if journal is None else journal.decision,
        tell=record.decided,
        fixed=fixed,
    )
    record.adapting = adapting

    def begin(index: int) -> None:
        if trail is not None:
            trail.begun(index)
        adapting.begun(index)

    driver = Driver(
        plan,
        session,
        brake,
        DriveLimits(in_flight, probe.timeout),
        observe,
        allowance=allowance,
        tenants=config.load.tenant_keys,
        on_begin=begin,
    )
    settings = ProbeSettings(
        tail=probe.tail,
        max_scored=probe.max_scored,
        continuation=probe.continuation,
        kept_context=probe.kept_context,
        amnesia_per_mille=round(probe.amnesia_share * 1000),
        control_per_mille=round(probe.control_share * 1000),
        repeat_per_mille=round(probe.repeat_share * 1000),
        top_k=probe.top_k,
        timeout_s=probe.timeout,
    )
    invariance = Invariance(
        session,
        record.victims,
        record.detector,
        spec.geometry,
        settings,
        seed=identity.seed,
        nonce=identity.nonce,
        companions=companions,
        on_pass=observe_pass,
    )
    prober = Prober(
        session,
        record.victims,
        record.detector,
        spec.geometry,
        settings,
        seed=identity.seed,
        nonce=identity.nonce,
        on_pass=observe_pass,
    )
    budget = ProbeBudget(
        probe.rate,
        prefill_share=config.probe_share,
        pool_share_per_minute=config.probes_pool_share,
        pool_tokens=target.geometry.max_total_tokens,
        load_tokens=lambda: driver.tokens_prefilled,
        allowance=allowance,
    )
    return Parts(
        session=session,
        brake=brake,
        watch=watch,
        record=record,
        desk=desk,
        driver=driver,
        prober=prober,
        invariance=invariance,
        invariance_per_mille=round(probe.invariance_share * 1000),
        seed=identity.seed,
        budget=budget,
        continuity=continuity,
        lateness=lateness,
    )
