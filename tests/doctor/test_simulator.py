"""The doctor at the embedded simulator: what it learns of each kind, and finds where something is planted."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import aiohttp
import numpy as np
import pytest

from soak.doctor.finding import Mark, State
from soak.runners.faults import settings_for
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.doctor.visiting import TRIED, line, mark, visit

KEY = "sk-marker-0123456789"

GEOMETRIES: dict[str, dict[str, Any]] = {
    "attention": {"model": "attention"},
    "attention, pages": {"model": "attention", "page_size": 64},
    "no_buffer": {},
    "extra_buffer": {"radix_strategy": "extra_buffer"},
    "extra_buffer, pages": {"radix_strategy": "extra_buffer", "page_size": 16},
    "extra_buffer, overlap": {"radix_strategy": "extra_buffer", "overlap": True},
    "extra_buffer, speculative": {"radix_strategy": "extra_buffer", "spec_draft_tokens": 3},
    "extra_buffer, mixed": {"radix_strategy": "extra_buffer", "mixed_chunk": True},
    "host tier": {"host_tokens": 65536},
    "no graphs": {"prefill_graph": False, "decode_graph": False},
    "small context": {"context_len": 600, "chunked_prefill_size": 64},
}


async def load_of(url: str) -> tuple[int, int]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/loads") as answer:
        (load,) = (await answer.json())["loads"]
    return load["num_running_reqs"], load["num_waiting_reqs"]


EXACT = ("attention, pages", "no_buffer", "extra_buffer", "host tier")


@pytest.mark.parametrize(
    ("name", "numerics"),
    [*((name, "production") for name in GEOMETRIES), *((name, "exact") for name in EXACT)],
)
async def test_a_healthy_server_is_ready(name: str, numerics: Any) -> None:
    config = SimConfig(numerics=numerics, **GEOMETRIES[name])
    async with running(config) as url:
        report = await visit(url)
        assert await load_of(url) == (0, 0)
    assert report.state is State.READY, report.groups
    assert {mark(report, tried) for tried in TRIED} == {Mark.OK}
    assert report.steps == (f"soak run --target {url} --duration 10m",)
    facts = report.facts
    assert facts["geometry"]["page"] == config.page_size
    assert facts["geometry"]["hybrid"] is config.hybrid
    if config.extra_buffer:
        assert facts["geometry"]["state_grid"] == config.checkpoint_grid
    assert facts["server"]["deterministic"] is (numerics == "exact")
    if numerics == "exact":
        assert facts["trial"]["warm_cold"]["max_abs"] == 0
        assert "to the last bit" in line(report, "agreement").words
    assert 0 < facts["sent"]["requests"] <= facts["limits"]["requests"]
    assert 0 < facts["sent"]["tokens"] <= facts["limits"]["tokens"]
    assert facts["cost_per_hour"]["prefill_tokens"] > 0


async def test_it_says_that_it_is_a_simulator_and_what_is_planted() -> None:
    settings = settings_for(["stale-track-rows"])
    async with running(SimConfig(faults=("stale-track-rows",), **settings)) as url:
        report = await visit(url)
    assert "simulator" in line(report, "software").words
    assert line(report, "#34184").mark is Mark.WARN
    assert report.state is State.READY
    assert [row["name"] for row in report.facts["faults"]] == ["stale-track-rows"]
    assert "stale-track-rows" in line(report, "aimed").words


@pytest.mark.parametrize("fault", ["state-not-restored", "middle-truncated"])
async def test_a_cache_that_is_wrong_on_every_hit_is_seen_at_once(fault: str) -> None:
    async with running(SimConfig(numerics="exact", faults=(fault,))) as url:
        report = await visit(url)
    assert line(report, "agreement").mark is Mark.BAD, report.groups
    assert report.state is State.UNFIT
    assert "something else than a recompute" in line(report, "agreement").words


async def test_no_radix_cache_is_said_and_nothing_is_sent() -> None:
    async with running(SimConfig(disable_radix_cache=True)) as url:
        report = await visit(url)
    assert report.state is State.UNFIT
    assert mark(report, "radix-cache") is Mark.BAD
    assert "--disable-radix-cache" in report.steps[0]
    assert report.facts["sent"] == {"requests": 0, "tokens": 0, "generated": 0}
    assert "nothing but GETs" in line(report, "sent").words


async def test_reads_only() -> None:
    async with running(SimConfig(radix_strategy="extra_buffer")) as url:
        report = await visit(url, may_try=False)
    assert report.state is State.PARTLY
    assert mark(report, "tried") is Mark.UNKNOWN
    assert "--allow-load" in report.steps[0]
    assert report.facts["sent"]["requests"] == 0
    assert "learned by trying" in line(report, "states").words
    assert report.facts["cost_per_hour"] is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [(None, "an API key is wanted"), ("sk-another-key", "the API key is refused"), (KEY, "accepted")],
)
async def test_keys(given: str | None, words: str) -> None:
    async with running(SimConfig(api_key=KEY)) as url:
        report = await visit(url, key=given)
    assert words in line(report, "key").words
    assert report.state is (State.READY if given == KEY else State.UNUSABLE)
    assert KEY not in repr(report)
    assert "sk-another" not in repr(report)


async def test_a_key_that_nobody_asked_for() -> None:
    async with running(SimConfig()) as url:
        report = await visit(url, key=KEY)
    assert "not needed" in line(report, "key").words


async def test_without_metrics_it_says_what_is_missed() -> None:
    async with running(SimConfig(enable_metrics=False)) as url:
        report = await visit(url)
    assert report.state is State.READY
    assert mark(report, "metrics") is Mark.WARN
    assert "/v1/loads" in line(report, "metrics").words
    assert "--enable-metrics" in line(report, "metrics").step


async def test_a_busy_server_is_not_to_be_soaked_unless_it_is_shared() -> None:
    config = SimConfig(step_delay_s=0.01)
    rids = itertools.count()
    async with running(config) as url, SGLangClient(url) as client:
        request = GenerateRequest(
            prompts=(np.arange(20, 60, dtype=np.int32),),
            rids=(f"somebody-{next(rids)}",),
            max_new_tokens=2000,
        )
        theirs = asyncio.create_task(client.generate(request))
        async with asyncio.timeout(20):
            while await load_of(url) != (1, 0):  # noqa: ASYNC110 - another process would be asked as well
                await asyncio.sleep(0.01)
        alone = await visit(url)
        shared = await visit(url, target={"shared": True})
        await client.abort(request.rids[0])
        await theirs
    assert mark(alone, "traffic") is Mark.BAD
    assert alone.state is State.UNFIT
    assert "1 requests that are not ours" in line(alone, "traffic").words
    assert "target.shared" in line(alone, "traffic").step
    assert mark(shared, "traffic") is Mark.OK
    assert shared.state is State.READY


async def test_a_plan_that_does_not_fit() -> None:
    async with running(SimConfig(context_len=600)) as url:
        report = await visit(url, load={"min_prompt": 400})
    assert mark(report, "cost") is Mark.BAD
    assert "load.min_prompt" in line(report, "cost").words


async def test_a_pool_that_is_turned_over_in_no_time() -> None:
    async with running(SimConfig(max_total_tokens=8192)) as url:
        report = await visit(url, load={"rate": 20})
    assert mark(report, "displaced") is Mark.WARN
    assert "load.rate" in line(report, "displaced").step
    assert mark(report, "limits") is Mark.WARN


async def test_what_cannot_hold_here_is_named_with_its_reason() -> None:
    async with running(SimConfig(prefill_graph=False, chunked_prefill_size=-1)) as url:
        report = await visit(url)
    assert (
        "co-batched-chunked-prefill (no prompt is longer than a chunk" in line(report, "not-applicable").words
    )
    rows = {row["shape"]: row for row in report.facts["shapes"]}
    assert rows["chunked-burst"]["makes_sense"] is False
    assert rows["shared-prefix"]["makes_sense"] is True
