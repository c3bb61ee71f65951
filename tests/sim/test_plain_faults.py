"""Faults without a conjunction: they show on every resume, or only to who knows what must come back."""

from __future__ import annotations

import numpy as np
import pytest

from soak.sim.config import SimConfig
from soak.sim.direct import scores
from soak.sim.engine import Update, swap_outputs
from soak.sim.server import running
from tests.sim.asking import body, direct, post, prompt


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer"])
def test_state_not_restored_shows_on_every_resume(strategy: str) -> None:
    sim = direct(radix_strategy=strategy, faults=("state-not-restored",))
    for i in range(4):
        document = prompt(256, seed=i)
        sim.ask(document)
        asked = np.concatenate([document, prompt(33, seed=50 + i)])
        cached, d = sim.warm_minus_cold(asked, 256, f"cold{i}")
        assert cached == 256
        assert np.median(np.abs(d[:16])) > 0.25


@pytest.mark.parametrize("model", ["hybrid", "attention"])
def test_middle_truncated_forgets_part_of_the_context(model: str) -> None:
    """Amnesia by the project's own measure: share of the far context's contribution that is lost."""
    shares = []
    for seed in range(6):
        sim = direct(model=model, faults=("middle-truncated",))
        written = sim.send(prompt(512, seed=seed), new=24, temperature=1.0, seed=seed)
        sim.drain()
        warm = scores(sim.ask(written.ids, score_from=512))
        cold = scores(sim.ask(written.ids, score_from=512, key="cold"))
        blank = scores(sim.ask(written.ids[512 - 64 :], score_from=64, key="blank"))
        shares.append((cold - warm).sum() / (cold - blank).sum())
    assert np.median(shares) > 0.2


def test_nan_logprobs_are_rare_and_become_null() -> None:
    sim = direct(faults=("nan-logprob",))
    lost = ~np.isfinite(
        np.concatenate([scores(sim.ask(prompt(400, seed=i), score_from=0)) for i in range(5)])
    )
    assert 0 < lost.mean() < 0.2


async def test_nan_logprobs_over_http() -> None:
    async with running(SimConfig(numerics="exact", faults=("nan-logprob",))) as url:
        asked = body(prompt(1500), 0, return_logprob=True, logprob_start_len=0)
        _, answer = await post(url, "/generate", asked)
    values = [triple[0] for triple in answer["meta_info"]["input_token_logprobs"]]
    assert None in values[1:]
    assert sum(v is not None for v in values) > 1200


async def test_identity_swap_is_seen_only_by_what_should_have_come_back() -> None:
    prompts = [prompt(40, seed=i).tolist() for i in range(2)]
    said = {}
    for faults in ((), ("identity-swap",)):
        async with running(SimConfig(numerics="exact", faults=faults)) as url:
            asked = {**body(prompts, 12, return_logprob=True), "rid": ["a", "b"]}
            _, answers = await post(url, "/generate", asked)
            said[faults] = [a["output_ids"] for a in answers]
            assert [a["meta_info"]["id"] for a in answers] == ["a", "b"]
            assert all(a["meta_info"]["completion_tokens"] == 12 for a in answers)
            for a in answers:
                assert [t[1] for t in a["meta_info"]["output_token_logprobs"]] == a["output_ids"]
            _, alone = await post(url, "/generate", body(prompts[0], 12))
            assert alone["output_ids"] == said[()][0]
    assert said[("identity-swap",)] == said[()][::-1]


def update(rid: str, output: list[int], done: bool) -> Update:
    finish = {"type": "length", "length": len(output)} if done else None
    return Update(rid, output, [], [], [], None, finish, 0, 0, 0, 0, 0.0, len(output))


def test_swap_needs_two_that_end_together_with_the_same_length() -> None:
    updates = [update("a", [1], True), update("b", [2], False), update("c", [3, 4], True)]
    assert [u.output for u in swap_outputs(updates)] == [[1], [2], [3, 4]]
    updates = [update("a", [1], True), update("b", [2], True), update("c", [3], True)]
    assert sorted(u.output[0] for u in swap_outputs(updates)) == [1, 2, 3]
    assert [u.output[0] for u in swap_outputs(updates)] != [1, 2, 3]
