"""Two ways to the same answer, on a toy server that can be wrong in one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from soak.oracle.batch_decoding import LEAST_TOKENS
from soak.oracle.invariance import SHAPE, Invariance
from soak.oracle.probe import PAIR_WORDS, ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.prober import PassSeen, ProbeSettings
from soak.oracle.victims import Victims
from soak.plan.geometry import Geometry
from soak.sglang.exchange import Answer, TokenIds
from tests.oracle.test_prober import Asked, victim
from tests.oracle.toy import ToySession

GEOMETRY = Geometry(context_len=1000, chunk=100)
SETTINGS = ProbeSettings(tail=40)
CHOSEN = set(PAIR_WORDS) - {ResumeKind.RECOMPUTED}


class Batches(ToySession):
    """A toy that takes several prompts in one request; ``whole``: nats added where nothing was cached."""

    whole = 0.0
    worker = ""

    async def generate(self, prompts: Iterable[TokenIds], **fields: object) -> tuple[Answer, ...]:
        answers: list[Answer] = []
        for ids in prompts:
            answers += await super().generate([ids], **fields)
            answers[-1].worker = self.worker
            if not answers[-1].cached_tokens:
                answers[-1].input_logprobs = answers[-1].input_logprobs + self.whole
        return tuple(answers)


def invariance(
    session: ToySession,
    *,
    length: int = 400,
    asked: Asked | None = None,
    adapter: str | None = None,
    **given: int,
) -> tuple[Invariance, list[PassSeen]]:
    victims = Victims(1)
    seen: list[PassSeen] = []
    victims.add(replace(victim(length), adapter=adapter))
    asking = Invariance(
        session,  # type: ignore[arg-type]
        victims,
        asked or Asked(),
        GEOMETRY,
        SETTINGS,
        seed=5,
        nonce=6,
        on_pass=seen.append,
        **given,
    )
    return asking, seen


def bucket(result: ProbeResult) -> int:
    """Of lengths: a prompt that is generated after is a part of a chunk of 100 tokens."""
    return 512 if result.kind is not ResumeKind.DECODE_BATCH else 64 if result.resume_boundary < 64 else 128


async def probes(asking: Invariance, count: int, first: int = 1) -> list[ProbeResult]:
    made = [await asking.probe(number) for number in range(first, first + count)]
    assert all(result is not None for result in made)
    return [result for result in made if result is not None]


async def test_on_a_healthy_server_all_ways_agree_to_the_last_bit() -> None:
    session = Batches()
    asking, seen = invariance(session)
    made = await probes(asking, 24)
    assert {result.kind for result in made} == CHOSEN
    for result in made:
        assert result.valid, result.detail
        assert result.divergence is not None
        assert result.divergence.zero
        generated = result.kind is ResumeKind.DECODE_BATCH
        assert result.divergence.tokens == (LEAST_TOKENS if generated else SETTINGS.tail)
        assert result.control is not None
        assert result.control.zero
        assert result.stream == f"{SHAPE}/{bucket(result)}/{result.kind.value}"
        assert result.ways
        mine = [p.sent for p in seen if p.number == result.number]
        assert result.tokens_spent == sum(
            p.answer.prompt_tokens - p.answer.cached_tokens + p.answer.completion_tokens for p in mine
        )
        assert result.tokens_spent >= (4 * result.resume_boundary if generated else 3 * 400)
        assert None not in {p.namespace for p in mine}  # nothing that load wrote is touched


async def test_steps_are_shorter_than_a_chunk_and_end_before_what_is_scored() -> None:
    session = Batches()
    asking, seen = invariance(session)
    for result in await probes(asking, 24):
        if result.kind is not ResumeKind.IN_STEPS:
            continue
        by_namespace: dict[str | None, list[int]] = {}
        for one in seen:
            if one.number == result.number and one.sent.what == "step":
                by_namespace.setdefault(one.sent.namespace, []).append(len(one.sent.ids))
        assert len(by_namespace) == 2  # the way and its control
        for ends in by_namespace.values():
            assert all(0 < b - a < GEOMETRY.chunk for a, b in zip([0, *ends], ends, strict=False))
            assert ends[-1] <= result.resume_boundary


async def test_a_fault_of_the_cold_pass_alone_shows_in_the_pair_and_not_in_its_control() -> None:
    session = Batches()
    session.whole = -0.5
    asking, _ = invariance(session, asked=Asked("looks bad"))
    for result in await probes(asking, 24):
        if result.kind is ResumeKind.DECODE_BATCH:
            continue  # cold is what both of its generations are held against
        assert result.divergence is not None
        assert result.control is not None
        assert result.control.zero
        assert result.cold_repeat is not None
        assert result.cold_repeat.zero
        assert result.confirmation is not None
        expected = 0.0 if result.kind is ResumeKind.IN_A_BATCH else 0.5  # a batch is cold as well
        assert result.divergence.max_abs == pytest.approx(expected)
        assert result.confirmation.max_abs == pytest.approx(expected)


async def test_what_was_evicted_meanwhile_is_asked_once_more_in_its_own_namespace() -> None:
    session = Batches()
    asking, seen = invariance(session, remembered=4)
    made = []
    for number in range(1, 30):
        session.cached.clear()
        made += await probes(asking, 1, first=number)
    again = [result for result in made if result.kind is ResumeKind.RECOMPUTED]
    assert again[0].valid
    assert again[0].divergence is not None
    assert again[0].divergence.zero
    assert again[0].control is not None
    first = next(p.sent for p in seen if p.number == again[0].number)
    earlier = [p.sent for p in seen if p.number < again[0].number and p.sent.what == "cold"]
    assert any(p.namespace == first.namespace and np.array_equal(p.ids, first.ids) for p in earlier)


async def test_what_is_still_cached_is_no_pass() -> None:
    asking, _ = invariance(Batches(), remembered=2)
    made = await probes(asking, 30)
    again = [result for result in made if result.kind is ResumeKind.RECOMPUTED]
    assert again
    assert {result.outcome for result in again} == {ProbeOutcome.STILL_CACHED}
    asking.forget()
    assert {r.kind for r in await probes(asking, 2, first=100)} <= CHOSEN


async def test_a_stream_is_of_the_worker_that_answered_every_pass() -> None:
    session = Batches()
    session.worker = "w1"
    asking, _ = invariance(session)
    made = await probes(asking, 24)
    assert {r.kind for r in made} == CHOSEN
    assert {r.stream for r in made} == {f"{SHAPE}/{bucket(r)}@w1/{r.kind.value}" for r in made}


async def test_what_one_worker_said_is_not_held_against_another_one() -> None:
    session = Batches()
    asking, _ = invariance(session, remembered=2)
    made = []
    for number in range(1, 30):
        session.cached.clear()
        session.worker = f"w{number}"
        made += await probes(asking, 1, first=number)
    again = [result for result in made if result.kind is ResumeKind.RECOMPUTED]
    assert again
    assert {result.outcome for result in again} == {ProbeOutcome.ELSEWHERE}


async def test_without_ids_nothing_is_asked_and_few_are_too_short() -> None:
    asking, seen = invariance(Batches(), length=8)
    made = [r for r in await probes(asking, 8) if r.kind is not ResumeKind.DECODE_BATCH]
    assert {r.outcome for r in made} == {ProbeOutcome.TOO_SHORT}
    assert not {p.number for p in seen} & {r.number for r in made}
    asking._victims = Victims(1)
    assert await asking.probe(9) is None


async def test_a_server_that_keeps_nothing_has_no_second_way() -> None:
    session = Batches()
    session.hit = lambda ids, namespace, limit: 0  # type: ignore[method-assign]
    asking, _ = invariance(session)
    outcomes = {r.kind: r.outcome for r in await probes(asking, 24)}
    assert outcomes[ResumeKind.IN_STEPS] is ProbeOutcome.BOUNDARY_MOVED
    assert outcomes[ResumeKind.IN_A_BATCH] is ProbeOutcome.VALID


async def test_the_same_number_asks_the_same() -> None:
    asked = []
    for _ in range(2):
        session = Batches()
        asking, _ = invariance(session)
        await probes(asking, 5)
        asked.append([(np.asarray(r["ids"]).tolist(), r.get("extra_key")) for r in session.requests])
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("tail", "outcome"), [(15, ProbeOutcome.TOO_SHORT), (16, ProbeOutcome.VALID)])
async def test_sixteen_tokens_are_enough_to_be_scored(tail: int, outcome: ProbeOutcome) -> None:
    victims = Victims(1)
    victims.add(victim(400))
    session = Batches()
    asking = Invariance(
        session,  # type: ignore[arg-type]
        victims,
        Asked(),
        GEOMETRY,
        ProbeSettings(tail=tail),
        seed=5,
        nonce=6,
    )
    (result,) = await probes(asking, 1)
    assert result.outcome is outcome


@pytest.mark.parametrize(("companions", "together"), [(1, {2}), (3, {2, 3, 4})])
async def test_companions_are_from_one_to_as_many_as_there_may_be(
    companions: int, together: set[int]
) -> None:
    asking, _ = invariance(Batches(), companions=companions)
    made = [result for result in await probes(asking, 90) if result.kind is ResumeKind.IN_A_BATCH]
    assert {int(result.ways.split(" of ")[1].split()[0]) for result in made} == together
