"""The in-process server answers as the simulator does over HTTP, and a run depends on its seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from soak.bench.detect.in_process import Site
from soak.bench.detect.scenes import CLEAN_SCENE
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, Outcome
from soak.sglang.session import Session
from soak.sim.config import SimConfig
from soak.sim.server import running

TIMES = {"sent_s", "finished_s", "rid", "http_status"}


def seen(answer: Answer) -> dict[str, Any]:
    values = {name: getattr(answer, name) for name in Answer.__slots__ if name not in TIMES}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}


async def conversation(session: Session, ids: Any) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [
        {"max_new_tokens": 4},
        {"max_new_tokens": 0, "return_logprob": True, "logprob_start_len": 192},
        {"max_new_tokens": 0, "return_logprob": True, "logprob_start_len": 192, "extra_key": "other"},
        {"max_new_tokens": 3, "return_logprob": True, "logprob_start_len": 190, "top_logprobs_num": 2},
        {"max_new_tokens": 5000},
    ]
    answers = [seen(answer) for given in asked for answer in await session.generate((ids,), **given)]
    return answers + [seen(a) for a in await session.generate((ids[:70], ids[70:]), max_new_tokens=2)]


async def test_it_answers_as_over_http() -> None:
    config = SimConfig(numerics="exact", radix_strategy="extra_buffer")
    site = Site(config, 3, "here")
    ids = site.ids(200)
    here = await conversation(site.session, ids)
    async with running(config) as url, SGLangClient(url) as client:
        there = await conversation(Session(client, "there"), ids)
    assert repr(here) == repr(there)  # NaN is NaN
    assert [a["outcome"] for a in here].count(Outcome.REJECTED) == 1
    assert here[1]["cached_tokens"] == 192


async def test_nothing_is_streamed_in_process() -> None:
    site = Site(SimConfig(numerics="exact"), 0, "x")
    with pytest.raises(ValueError, match="streamed"):
        await site.session.generate((site.ids(10),), stream=True)


def test_draws_and_tokens_depend_on_the_seed_alone() -> None:
    first, again, other = (Site(SimConfig(numerics="exact"), seed, "x") for seed in (1, 1, 2))
    assert np.array_equal(first.ids(50), again.ids(50))
    assert first.draw.below(1000) == again.draw.below(1000)
    assert not np.array_equal(first.ids(50), other.ids(50))


def test_beside_another_request_the_session_counts_it() -> None:
    site = Site(SimConfig(numerics="exact"), 0, "x")
    with site.busy():
        assert site.session.prompts_in_flight == 1
        assert site.direct.scheduler.running
    assert site.session.prompts_in_flight == 0
    assert not site.direct.scheduler.running


def test_only_a_server_with_noise_gets_louder() -> None:
    with pytest.raises(ValueError, match="no noise"):
        Site(SimConfig(numerics="exact"), 0, "x").louder(2.0)
    quiet, loud = (Site(CLEAN_SCENE.config("production", 5), 5, "x") for _ in range(2))
    loud.louder(4.0)
    truth = Site(CLEAN_SCENE.config("exact", 5), 5, "x")
    ids = truth.ids(150).astype(np.int64)
    _, exact = truth.direct.warm_minus_cold(ids, 10, "cold")
    assert not exact.any()
    sizes = [float(np.abs(s.direct.warm_minus_cold(ids, 10, "cold")[1]).mean()) for s in (quiet, loud)]
    assert sizes[1] > 2 * sizes[0] > 0
