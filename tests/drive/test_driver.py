"""The driver against a session in memory: on time, capped, counted, and gone when told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Iterable

import numpy as np
import pytest

from soak.drive.brake import Brake, StopLimits
from soak.drive.driver import DriveLimits, Driver
from soak.drive.observation import Observation
from soak.plan.geometry import Geometry
from soak.plan.item import AbortBy, Item
from soak.plan.plan import Plan
from soak.plan.spec import ResolvedSpec
from soak.sglang.exchange import Answer, Outcome, TokenIds


class Session:
    """Answers after ``seconds``; remembers what was asked and how many were in flight at once."""

    def __init__(self, seconds: float = 0.0, outcome: Outcome = Outcome.OK) -> None:
        self.seconds, self.outcome = seconds, outcome
        self.asked: list[tuple[tuple[TokenIds, ...], dict[str, object]]] = []
        self.now = self.most = 0
        self.cancelled = 0
        self.rids = 0
        self.aborted: list[str] = []
        self.abandoned: list[str] = []
        self.stopped = asyncio.Event()

    def rid(self) -> str:
        self.rids += 1
        return f"rid-{self.rids}"

    def tenant(self, number: int) -> str:
        return f"tenant-{number}"

    def rank_of(self, index: int) -> int | None:
        return None

    async def abort(self, rids: Iterable[str]) -> None:
        self.aborted.extend(rids)
        self.stopped.set()

    async def abandon(self, rids: Iterable[str]) -> None:
        self.abandoned.extend(rids)

    async def generate(self, prompts: Iterable[TokenIds], **fields: object) -> tuple[Answer, ...]:
        wanted = tuple(prompts)
        self.asked.append((wanted, fields))
        self.now += len(wanted)
        self.most = max(self.most, self.now)
        sent = time.monotonic()
        try:
            async with asyncio.timeout(self.seconds):
                await self.stopped.wait()
                self.outcome = Outcome.ABORTED
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= len(wanted)
        tokens = fields["max_new_tokens"]
        assert isinstance(tokens, int)
        return tuple(
            Answer(
                "r",
                self.outcome,
                sent_s=sent,
                finished_s=time.monotonic(),
                prompt_tokens=len(ids),
                output_ids=np.arange(tokens, dtype=np.int32),
            )
            for ids in wanted
        )


def driver(
    session: Session, spec: ResolvedSpec, limits: DriveLimits | None = None, brake: Brake | None = None
) -> tuple[Driver, list[Observation]]:
    seen: list[Observation] = []
    made = Driver(
        Plan(1, spec),
        session,  # type: ignore[arg-type]
        brake or Brake(StopLimits()),
        limits or DriveLimits(),
        seen.append,
    )
    return made, seen


FAST = ResolvedSpec(arrivals="constant", rate="100", weights=(("shared-prefix", 1),))


async def test_every_planned_item_is_sent_at_its_time() -> None:
    tested, seen = driver(Session(), FAST)
    await tested.run(0.5)
    await tested.drain(1)
    assert [s.item.index for s in seen] == list(range(50))
    assert tested.asked == tested.delivered == 50
    assert all(s.lag_s < 0.25 for s in seen)
    intended = [s.intended_s for s in seen]
    gaps = [b - a for a, b in itertools.pairwise(intended)]
    assert gaps == pytest.approx([0.01] * 49, abs=1e-6)


async def test_what_is_due_is_sent_before_the_next_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    tested, _ = driver(session, FAST)
    sent: list[tuple[int, int]] = []  # (index being planned, requests sent by then)
    items = Plan.items

    def planned(self: Plan, index: int) -> tuple[Item, ...]:
        sent.append((index, len(session.asked)))
        return items(self, index)

    monkeypatch.setattr(Plan, "items", planned)
    await tested.run(0.1)
    await tested.drain(1)
    assert sent == [(0, 0), *((index, index) for index in range(1, 11))]


async def test_shards_together_send_the_whole_plan() -> None:
    indices: list[int] = []
    for shard in range(3):
        tested, seen = driver(Session(), FAST)
        await tested.run(0.3, shard, 3)
        await tested.drain(1)
        indices += [s.item.index for s in seen]
    assert sorted(indices) == list(range(30))


async def test_it_is_open_loop_slow_answers_do_not_delay_the_next() -> None:
    session = Session(seconds=0.3)
    tested, _ = driver(session, FAST)
    await tested.run(0.3)
    assert session.most > 20
    await tested.drain(1)


async def test_the_cap_holds_and_what_it_kept_back_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soak.drive.driver._PATIENCE_S", 0.05)
    session = Session(seconds=0.4)
    tested, _ = driver(session, FAST, DriveLimits(in_flight=4))
    await tested.run(0.3)
    await tested.drain(1)
    assert session.most <= 4
    assert tested.asked == 30
    assert tested.delivered + sum(tested.undelivered.values()) == 30
    assert tested.undelivered["in-flight-cap"] > 10
    assert tested.delivered < 12


async def test_the_cap_holds_when_many_wait_for_the_same_place() -> None:
    session = Session(seconds=0.05)
    tested, _ = driver(session, dataclasses.replace(FAST, rate="2000"), DriveLimits(in_flight=4))
    await tested.run(0.3)
    await tested.drain(3)
    assert session.most == 4
    assert tested.in_flight == 0
    assert tested.asked == tested.delivered + tested.undelivered.total() >= 599


async def test_a_plan_that_is_too_fast_lets_others_run_and_ends_on_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("soak.drive.driver._PATIENCE_S", 0.1)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    tested, _ = driver(Session(), dataclasses.replace(FAST, rate="1000000"))
    other = asyncio.create_task(beat())
    start = time.monotonic()
    await tested.run(0.5)
    assert time.monotonic() - start < 2
    other.cancel()
    await tested.drain(2)
    assert beats > 50
    assert tested.asked == pytest.approx(500_000, rel=0.05)
    assert tested.undelivered["too-late"] > 400_000


async def test_a_fault_of_ours_in_a_scene_is_not_swallowed() -> None:
    def broken(seen: Observation) -> None:
        raise RuntimeError(f"no place for {seen.item.index}")

    session = Session()
    tested = Driver(Plan(1, FAST), session, Brake(StopLimits()), DriveLimits(), broken)  # type: ignore[arg-type]
    fault = asyncio.create_task(tested.until_fault())
    await tested.run(0.1)
    await tested.drain(1)
    with pytest.raises(RuntimeError, match="no place for 0"):
        await fault


async def test_a_closed_brake_skips_and_counts() -> None:
    brake = Brake(StopLimits(ttft_s=1))
    brake.first_token_after(100)
    tested, seen = driver(Session(), FAST, brake=brake)
    await tested.run(0.1)
    await tested.drain(1)
    assert not seen
    assert tested.undelivered == {"server-ttft": 10}


async def test_bursts_go_out_together_or_in_one_request() -> None:
    spec = ResolvedSpec(arrivals="constant", rate="50", weights=(("chunked-burst", 1),))
    session = Session(seconds=0.05)
    tested, seen = driver(session, spec)
    await tested.run(0.4)
    await tested.drain(2)
    whole = [prompts for prompts, _ in session.asked if len(prompts) > 1]
    assert whole
    for index, group in itertools.groupby(seen, lambda s: s.item.index):
        parts = list(group)
        assert sorted(s.part for s in parts) == list(range(len(parts[0].item.prompts))), index
        assert all(s.prefilling_companions >= 1 for s in parts[1:])


async def test_a_follow_up_continues_what_its_parent_returned() -> None:
    spec = ResolvedSpec(arrivals="constant", rate="20", weights=(("decode-seeded", 1),))
    tested, seen = driver(Session(), spec)
    await tested.run(0.9)
    await tested.drain(2)
    pairs = {s.item.index: s for s in seen if s.item.step == 0}
    follow_ups = [s for s in seen if s.item.step == 1]
    assert follow_ups
    for second in follow_ups:
        first = pairs[second.item.index]
        before = np.concatenate([first.ids, first.answer.output_ids])
        assert np.array_equal(second.ids[: len(before)], before)
        assert second.intended_s >= first.answer.finished_s


async def test_nothing_follows_a_parent_that_failed() -> None:
    spec = ResolvedSpec(arrivals="constant", rate="20", weights=(("decode-seeded", 1),))
    tested, seen = driver(Session(outcome=Outcome.SERVER_ERROR), spec)
    await tested.run(0.5)
    await tested.drain(1)
    assert {s.item.step for s in seen} == {0}
    assert tested.asked == tested.delivered == 10


async def test_draining_ends_in_time_and_cancels_the_rest() -> None:
    session = Session(seconds=60)
    tested, _ = driver(session, FAST)
    await tested.run(0.1)
    start = time.monotonic()
    assert await tested.drain(0.2) == 10
    assert time.monotonic() - start < 2
    assert session.cancelled == 10
    assert tested.in_flight == 0


def only(shape: str, **fields: object) -> ResolvedSpec:
    return dataclasses.replace(FAST, weights=((shape, 1),), rate="1", **fields)  # type: ignore[arg-type]


async def test_an_abort_by_rid_is_the_plans_and_no_error() -> None:
    for seed in range(40):
        plan = Plan(seed, only("abort-storm"))
        first = plan.items(0)[0]
        assert first.abort is not None
        if first.abort.by is AbortBy.REQUEST:
            break
    session, seen = Session(30.0), list[Observation]()
    made = Driver(plan, session, Brake(StopLimits()), DriveLimits(), seen.append)  # type: ignore[arg-type]
    await made.run(0.9)
    await made.drain(0.0)
    assert session.aborted == ["rid-1"]
    assert seen[0].answer.outcome is Outcome.TAKEN_BACK
    assert seen[0].abort_us is not None
    assert not session.abandoned
    assert session.asked[0][1]["rids"] == ("rid-1",)


async def test_a_client_that_hangs_up_leaves_nothing_running_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("soak.drive.driver._HUNG_UP_S", 0.05)
    for seed in range(40):
        plan = Plan(seed, only("abort-storm"))
        if plan.items(0)[0].abort.by is AbortBy.DISCONNECT:  # type: ignore[union-attr]
            break
    session, seen = Session(30.0), list[Observation]()
    made = Driver(plan, session, Brake(StopLimits()), DriveLimits(), seen.append)  # type: ignore[arg-type]
    await made.run(0.9)
    assert session.abandoned == ["rid-1"]
    assert seen[0].answer.outcome is Outcome.TAKEN_BACK
    assert not session.aborted
    await made.drain(0.0)


async def test_a_request_that_ended_before_its_abort_stands() -> None:
    tested, seen = driver(Session(0.0), only("abort-storm"))
    await tested.run(0.9)
    await tested.drain(1)
    assert [s.answer.outcome for s in seen] == [Outcome.OK, Outcome.OK]
    assert seen[0].abort_us is None
    assert [s.item.step for s in seen] == [0, 1]


async def test_a_later_step_without_parent_waits_for_the_step_before() -> None:
    session = Session(0.1)
    tested, seen = driver(session, only("tier-round-trip", pressure=3))
    await tested.run(0.9)
    await tested.drain(1)
    steps = [s.item.step for s in seen]
    assert steps == [0, 1, 1, 1, 2]
    assert seen[1].answer.sent_s >= seen[0].answer.finished_s
    assert seen[4].answer.sent_s >= seen[3].answer.finished_s


async def test_tenants_have_namespaces_of_their_own_or_the_given_ones() -> None:
    session = Session()
    tested, seen = driver(session, dataclasses.replace(only("tenant-ping-pong"), rate="100"))
    await tested.run(0.3)
    await tested.drain(1)
    assert {s.namespace for s in seen} == {"tenant-0", "tenant-1", "tenant-2"}
    assert {fields["extra_key"] for _, fields in session.asked} == {"tenant-0", "tenant-1", "tenant-2"}
    plan = Plan(1, dataclasses.replace(only("tenant-ping-pong"), rate="100"))
    given = Session()
    made = Driver(
        plan, given, Brake(StopLimits()), DriveLimits(), seen.append,  # type: ignore[arg-type]
        tenants=("a", "b", "c"),
    )  # fmt: skip
    await made.run(0.3)
    await made.drain(1)
    assert {fields["extra_key"] for _, fields in given.asked} == {"a", "b", "c"}


class Pausing(Session):
    """Remembers when it was paused, between what was asked."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(seconds)
        self.told: list[str] = []
        self.lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def held(self, mode: str) -> AsyncIterator[bool]:
        async with self.lock:
            self.told.append(mode)
            try:
                yield True
            finally:
                await self.let_go_on()

    async def let_go_on(self) -> None:
        pauses = [word for word in self.told if word != "asked"]
        if pauses[-1] != "on":
            self.told.append("on")

    async def generate(self, prompts: Iterable[TokenIds], **fields: object) -> tuple[Answer, ...]:
        self.told.append("asked")
        return await super().generate(prompts, **fields)


def served_by(shape: str, **geometry: object) -> ResolvedSpec:
    facts = Geometry(**geometry)  # type: ignore[arg-type]
    return dataclasses.replace(FAST, rate="20", weights=((shape, 1),), geometry=facts, decode_tokens=8)


async def test_a_pause_holds_what_queues_and_always_ends() -> None:
    session = Pausing(0.2)
    tested, seen = driver(session, served_by("pause-queue"))
    await tested.run(1.0)
    await tested.drain(5)
    assert {s.held for s in seen} == {True, False}
    assert {"in_place", "retract"} <= set(session.told)
    assert session.told.count("on") == session.told.count("in_place") + session.told.count("retract")
    place = session.told.index("in_place")
    assert session.told[place + 1] == "asked"


async def test_a_run_that_ends_in_a_pause_ends_the_pause() -> None:
    session = Pausing(30)
    tested, _ = driver(session, served_by("pause-queue"))
    await tested.run(0.5)
    await tested.drain(0)
    assert session.told.count("on") == session.told.count("in_place") + session.told.count("retract")


async def test_adapters_and_their_names_as_namespaces_are_sent() -> None:
    session = Session()
    tested, seen = driver(session, served_by("adapters", adapters=("fr", "de")))
    await tested.run(2.0)
    await tested.drain(5)
    sent = {(fields.get("lora_path"), fields["extra_key"]) for _, fields in session.asked}
    assert sent <= {("fr", None), ("de", None), (None, "fr"), (None, "de"), (None, None)}
    assert {adapter for adapter, _ in sent} >= {None, "fr"}  # a busy machine leaves some of the plan out
    assert {key for _, key in sent} >= {None, "de"}
    assert {s.namespace for s in seen} == {key for _, key in sent}


async def test_each_strict_prompt_has_a_schema_of_its_own() -> None:
    session = Session()
    tested, _ = driver(session, served_by("strict-json", grammar=True))
    await tested.run(0.5)
    await tested.drain(5)
    schemas = [fields["json_schema"] for _, fields in session.asked]
    assert len(set(map(str, schemas))) == len(schemas) > 5
    assert all(fields["ignore_eos"] is False for _, fields in session.asked)


async def test_only_the_named_part_is_taken_back() -> None:
    session = Session(0.1)
    tested, seen = driver(session, served_by("abort-load", max_total_tokens=9000))
    await tested.run(0.3)
    await tested.drain(10)
    last = [s for s in seen if s.item.step == 2]
    back = [s for s in last if s.abort_us is not None]
    assert back
    assert {s.part for s in back} == {len(s.item.prompts) - 1 for s in back}
    assert len(last) > len(back)
