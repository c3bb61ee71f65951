"""A prompt generated in a batch and alone, on a toy server that can be wrong in a batch alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from soak.oracle.batch_decoding import LEAST_TOKENS, BatchDecoding, common_prefix
from soak.oracle.invariance import COMPANIONS
from soak.oracle.passes import PassFailedError
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.prober import PassSeen
from soak.plan.geometry import Geometry
from soak.plan.words import Draw
from soak.sglang.exchange import Answer, TokenIds
from tests.oracle.test_invariance import Batches, invariance
from tests.oracle.test_prober import Asked
from tests.oracle.toy import logprob


class Together(Batches):
    """The same, ``off``: nats added to what is generated beside others; ``parts``: its place of a token that
    is then another one; ``lost``: how many logprobs are missing."""

    off = 0.0
    parts: int | None = None
    lost = 0

    async def generate(self, prompts: Iterable[TokenIds], **fields: object) -> tuple[Answer, ...]:
        wanted = list(prompts)
        answers = await super().generate(wanted, **fields)
        for answer, ids in zip(answers, wanted, strict=True):
            if len(wanted) == 1 or not fields.get("max_new_tokens"):
                continue
            if self.parts is not None:
                cut = answer.output_ids.copy()
                cut[self.parts] = 901 if cut[self.parts] != 901 else 902
                answer.output_ids = cut
                answer.output_logprobs = self.scored(ids, cut)
            answer.output_logprobs = answer.output_logprobs[self.lost :] + self.off
        return answers

    @staticmethod
    def scored(ids: TokenIds, output: TokenIds) -> np.ndarray:
        whole = np.concatenate([ids.astype(np.int32), output])
        return np.array([logprob(whole[:i].tobytes(), int(whole[i])) for i in range(len(ids), len(whole))])


async def probes(
    session: Together, *, adapter: str | None = None, asked: Asked | None = None, count: int = 40
) -> tuple[list[ProbeResult], list[PassSeen]]:
    """What came of the probes of this kind among so many, and their passes."""
    asking, seen = invariance(session, asked=asked, adapter=adapter)
    made = [await asking.probe(number) for number in range(1, count + 1)]
    mine = [r for r in made if r is not None and r.kind is ResumeKind.DECODE_BATCH]
    assert len(mine) >= 3
    numbers = {r.number for r in mine}
    return mine, [one for one in seen if one.number in numbers]


async def test_what_is_wrong_in_a_batch_alone_shows_in_the_pair_and_not_in_its_control() -> None:
    session = Together()
    session.off = -0.5
    made, seen = await probes(session, asked=Asked("looks bad"))
    for result in made:
        assert result.valid, result.detail
        assert result.divergence is not None
        assert result.divergence.tokens == LEAST_TOKENS
        assert result.divergence.max_abs == pytest.approx(0.5)
        assert result.divergence.first16_median_abs == pytest.approx(0.5)
        assert result.control is not None
        assert result.control.zero
        assert result.cold_repeat is not None
        assert result.cold_repeat.zero
        assert result.confirmation is not None
        assert result.confirmation.max_abs == pytest.approx(0.5)
        assert "the same 24 of 24 tokens, there max |d| 0.5 nats" in result.ways
    whats = {one.sent.what for one in seen}
    assert whats >= {"warm", "cold", "control", "control cold", "confirming warm", "confirming cold"}


async def test_a_batch_that_says_something_else_is_scored_by_what_it_said() -> None:
    session = Together()
    session.parts = 5
    for result in (await probes(session))[0]:
        assert result.divergence is not None
        assert result.divergence.zero
        assert "the same 5 of 24 tokens, there max |d| 0 nats" in result.ways


async def test_batches_are_of_every_width_and_all_of_them_generate_as_much() -> None:
    session = Together()
    made, _ = await probes(session, count=150)
    batches: dict[object, list[dict[str, object]]] = {}
    for request in session.requests:
        if request.get("max_new_tokens") == LEAST_TOKENS:
            batches.setdefault(request["extra_key"], []).append(request)
    assert {len(batch) for batch in batches.values()} == set(range(1, COMPANIONS + 2))
    assert len(batches) == 2 * len(made)  # of each a namespace of its own: no cache, and nobody else's
    assert {request["temperature"] for batch in batches.values() for request in batch} == {0.0}


async def test_every_pass_of_a_prefix_with_an_adapter_names_it() -> None:
    session = Together()
    await probes(session, adapter="french")
    assert {request.get("lora_path") for request in session.requests} == {"french"}


async def test_lost_logprobs_are_no_pass() -> None:
    session = Together()
    session.lost = 2
    made, _ = await probes(session)
    assert {r.outcome for r in made} == {ProbeOutcome.REQUEST_FAILED}
    assert "22 logprobs came back, 24 asked" in made[0].detail


def test_a_prompt_fits_one_chunk_and_the_context() -> None:
    ids = np.arange(500, dtype=np.int32)
    for number in range(40):
        draw = Draw(1, "prompts", number)
        for geometry in (Geometry(context_len=1000, chunk=100), Geometry(context_len=60, chunk=100)):
            decoding = BatchDecoding(geometry, seed=1, nonce=2, tokens=30, companions=3)
            prompt = decoding.prompt(ids, draw)
            assert 16 <= len(prompt) <= min(100, geometry.context_len - 31)
    with pytest.raises(PassFailedError, match="no prompt to go on from"):
        decoding.prompt(ids[:9], draw)


def test_common_prefix() -> None:
    def said(*ids: int) -> Answer:
        return Answer("r", output_ids=np.array(ids, np.int32), outcome=None)  # type: ignore[arg-type]

    assert common_prefix(said(1, 2, 3), said(1, 2, 3)) == 3
    assert common_prefix(said(1, 2, 3), said(1, 5, 3)) == 1
    assert common_prefix(said(4, 2), said(1, 2)) == 0
