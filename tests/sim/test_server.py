"""The HTTP face, over a real socket: shapes, refusals, abort, flush, pause, keys, metrics.

Read off SGLang 0.5.18.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from soak.sim.config import SimConfig
from soak.sim.server import Server, running
from tests.sim.asking import body, get, post, prompt


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with running(SimConfig(numerics="exact")) as url:
        yield url


async def events(url: str, asked: dict[str, Any]) -> list[Any]:
    """Decoded data lines of a stream, [DONE] as None."""
    out: list[Any] = []
    async with aiohttp.ClientSession() as session, session.post(url + "/generate", json=asked) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        async for line in answer.content:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                out.append(None if data == b"[DONE]" else json.loads(data))
    return out


async def until_running(url: str, wanted: int) -> None:
    """Poll the server's own count of running requests."""
    for _ in range(5000):
        (line,) = [
            row
            for row in (await get(url, "/metrics"))[1].splitlines()
            if row.startswith("sglang:num_running_reqs{")
        ]
        if float(line.rsplit(" ", 1)[1]) == wanted:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"never {wanted} running requests: {line}")


async def test_one_answer(url: str) -> None:
    ids = prompt(30)
    asked = body(ids, 3, return_logprob=True, logprob_start_len=27, top_logprobs_num=2, token_ids_logprob=[5])
    status, answer = await post(url, "/generate", {**asked, "rid": "r1"})
    assert status == 200
    assert set(answer) == {"output_ids", "meta_info"}
    meta = answer["meta_info"]
    assert meta["id"] == "r1"
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (30, 3, 0)
    assert meta["cached_tokens_details"] is None
    assert meta["dp_rank"] is None
    assert meta["num_retractions"] == 0
    assert [t[1:] for t in meta["input_token_logprobs"]] == [[int(i), None] for i in ids[27:]]
    assert meta["input_token_logprobs"][0][0] is None
    assert meta["input_token_logprobs"][1][0] < 0
    assert [t[1] for t in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["output_token_logprobs_length"] == 3
    assert meta["input_top_logprobs"][0] is None
    assert [len(top) for top in meta["input_top_logprobs"][1:]] == [2, 2]
    assert [len(top) for top in meta["output_top_logprobs"]] == [2, 2, 2]
    assert meta["output_top_logprobs"][0][0] == meta["output_token_logprobs"][0]
    assert meta["input_token_ids_logprobs"][0] is None
    assert [p[0][1] for p in meta["output_token_ids_logprobs"]] == [5, 5, 5]


async def test_scoring_only_and_the_default_start(url: str) -> None:
    ids = prompt(40)
    _, answer = await post(url, "/generate", body(ids, 0, return_logprob=True, logprob_start_len=0))
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert len(answer["meta_info"]["input_token_logprobs"]) == 40
    _, answer = await post(url, "/generate", body(ids, 2, return_logprob=True))
    assert answer["meta_info"]["input_token_logprobs"] == []
    assert len(answer["meta_info"]["output_token_logprobs"]) == 2


async def test_the_last_id_is_shown_as_zero_among_input_logprobs(url: str) -> None:
    _, answer = await post(url, "/generate", body([5, 999, 7], 0, return_logprob=True, logprob_start_len=0))
    assert [t[1] for t in answer["meta_info"]["input_token_logprobs"]] == [5, 0, 7]


async def test_logprob_start_len_limits_the_match(url: str) -> None:
    ids = prompt(600)
    await post(url, "/generate", body(ids, 1))
    for start, expected in ((0, 0), (300, 256), (599, 512), (-1, 512)):
        asked = body(ids, 0, return_logprob=True, logprob_start_len=start)
        _, answer = await post(url, "/generate", asked)
        assert answer["meta_info"]["cached_tokens"] == expected
        details = answer["meta_info"]["cached_tokens_details"]
        assert details == ({"device": expected, "host": 0} if expected else None)


async def test_namespaces_are_apart(url: str) -> None:
    ids = prompt(300)
    cached = []
    for key in ("a", "b", "a", None):
        _, answer = await post(url, "/generate", body(ids, 0, extra_key=key))
        cached.append(answer["meta_info"]["cached_tokens"])
    assert cached == [0, 0, 256, 0]


async def test_batched(url: str) -> None:
    asked = body([prompt(30).tolist(), prompt(5).tolist()], 2)
    status, answer = await post(url, "/generate", {**asked, "rid": ["x", "y"]})
    assert status == 200
    assert [a["meta_info"]["id"] for a in answer] == ["x", "y"]
    assert [a["meta_info"]["prompt_tokens"] for a in answer] == [30, 5]
    _, answer = await post(url, "/generate", {**asked, "rid": "p"})
    assert [a["meta_info"]["id"] for a in answer] == ["p_0", "p_1"]


async def test_stream_is_cumulative_and_ends_with_done(url: str) -> None:
    chunks = await events(url, body(prompt(30), 40, stream=True, return_logprob=True))
    assert chunks[-1] is None
    lengths = [len(c["output_ids"]) for c in chunks[:-1]]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 40
    assert all(c["meta_info"]["finish_reason"] is None for c in chunks[:-2])
    assert chunks[-2]["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    assert all(len(c["meta_info"]["output_token_logprobs"]) == len(c["output_ids"]) for c in chunks[:-1])


async def test_batched_stream_names_the_prompt(url: str) -> None:
    chunks = await events(url, body([prompt(30).tolist(), prompt(9).tolist()], 2, stream=True))
    assert {c["index"] for c in chunks[:-1]} == {0, 1}


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"input_ids": []}, "input_ids cannot be empty."),
    ({}, "Either text, input_ids or input_embeds should be provided."),
    ({"input_ids": [7] * 5000}, "The input (5000 tokens) is longer than the model's context length (4096"),
    ({"input_ids": [7] * 4000, "sampling_params": {"max_new_tokens": 200}}, "You requested a total of 4200"),
    (
        {"input_ids": [7] * 4094, "sampling_params": {"max_new_tokens": 1}},
        "maximum allowed length (4090 tokens)",
    ),
    ({"input_ids": [7], "sampling_params": {"temperature": -1}}, "temperature must be a non-negative"),
    (
        {"input_ids": [7], "sampling_params": {"max_new_tokens": -1}},
        "max_new_tokens must be at least 0, got -1.",
    ),
    (
        {"input_ids": [7], "return_logprob": True, "logprob_start_len": 2},
        "req.logprob_start_len=2 is higher than",
    ),
    (
        {"input_ids": [7], "return_logprob": True, "token_ids_logprob": [2147483647]},
        "token_ids_logprob contains out-of-vocabulary token id 2147483647; valid range is [0, 1000).",
    ),
    ({"text": "hello"}, "skip_tokenizer_init=True cannot accept text prompts"),
    (
        {"input_ids": [[5], [6]], "rid": ["a", "a"]},
        "Duplicate request IDs detected within the request: ['a']",
    ),
]


@pytest.mark.parametrize(("asked", "message"), REFUSALS)
async def test_refusals(url: str, asked: dict[str, Any], message: str) -> None:
    status, answer = await post(url, "/generate", asked)
    assert status == 400
    assert message in answer["error"]["message"]
    if "text" in asked or not asked.get("input_ids"):
        return
    chunks = await events(url, {**asked, "stream": True})
    assert chunks[-1] is None
    if "error" in chunks[0]:
        assert message in chunks[0]["error"]["message"]
        assert chunks[0]["error"]["code"] == 400
    else:
        assert message in chunks[0]["meta_info"]["finish_reason"]["message"]


async def test_bodies_that_are_not_requests(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.post(url + "/generate", data=b"{") as answer:
            assert answer.status == 400
            assert (await answer.json())["object"] == "error"
    status, answer_body = await post(url, "/generate", {"input_ids": "x"})
    assert (status, answer_body["type"]) == (400, "Bad Request")
    status, text = await post(url, "/generate", {"input_ids": [5], "sampling_params": {"nonsense": 1}})
    assert (status, text) == (500, "Internal Server Error")
    assert (await get(url, "/nothing"))[0] == 404
    assert (await get(url, "/generate"))[0] == 405


async def test_abort_by_prefix_and_always_200(url: str) -> None:
    slow = [
        asyncio.create_task(post(url, "/generate", body(prompt(20, seed=i), 3000, rid=f"soak-{i}")))
        for i in (1, 10, 2)
    ]
    await until_running(url, 3)
    assert (await post(url, "/abort_request", {"rid": "nobody"}))[0] == 200
    assert (await post(url, "/abort_request", {"rid": ""}))[0] == 200
    assert (await post(url, "/abort_request", {"rid": "soak-1"}))[0] == 200
    for task in slow[:2]:
        status, answer = await task
        assert status == 200
        reason = answer["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", None)
        assert 0 < answer["meta_info"]["completion_tokens"] < 3000
    assert not slow[2].done()
    await post(url, "/abort_request", {"rid": "", "abort_all": True})
    assert (await slow[2])[1]["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_client_that_leaves_is_aborted(url: str) -> None:
    task = asyncio.create_task(post(url, "/generate", body(prompt(20), 4000, rid="gone")))
    await until_running(url, 1)
    task.cancel()
    await until_running(url, 0)


async def test_flush_waits_or_fails_while_busy(url: str) -> None:
    assert (await get(url, "/flush_cache"))[0] == 200
    task = asyncio.create_task(post(url, "/generate", body(prompt(20), 3000, rid="busy")))
    await until_running(url, 1)
    for query, words in (("", "Flush cache failed."), ("?timeout=0.02", "Timed out waiting for idle state.")):
        status, text = await get(url, f"/flush_cache{query}")
        assert (status, text.strip()) == (400, words)
    waiting = asyncio.create_task(get(url, "/flush_cache?timeout=30"))
    await asyncio.sleep(0.02)
    assert (await get(url, "/flush_cache"))[1].strip() == "Another flush_cache is already in progress."
    await post(url, "/abort_request", {"rid": "busy"})
    status, text = await waiting
    assert (status, text.split("\n")[0]) == (200, "Cache flushed.")
    await task
    assert (await get(url, "/flush_cache?timeout=-1"))[0] == 400


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_pause_and_continue(url: str, mode: str) -> None:
    reference = (await post(url, "/generate", body(prompt(50), 1200)))[1]["output_ids"]
    task = asyncio.create_task(post(url, "/generate", body(prompt(50), 1200)))
    await until_running(url, 1)
    status, answer = await post(url, "/pause_generation", {"mode": mode})
    assert (status, answer["status"]) == (200, "ok")
    flushed, _ = await get(url, "/flush_cache")
    assert not task.done()
    assert (await post(url, "/continue_generation", {}))[0] == 200
    answer = (await task)[1]
    assert answer["output_ids"] == reference
    if mode == "retract":
        assert flushed == 200
        assert answer["meta_info"]["num_retractions"] == 1
    else:
        assert flushed == 400
    assert (await post(url, "/pause_generation", {"mode": "sideways"}))[0] == 400


async def test_pause_abort_ends_everything(url: str) -> None:
    task = asyncio.create_task(post(url, "/generate", body(prompt(50), 3000)))
    await until_running(url, 1)
    assert (await post(url, "/pause_generation", {}))[0] == 200
    assert (await task)[1]["meta_info"]["finish_reason"]["type"] == "abort"
    queued = asyncio.create_task(post(url, "/generate", body(prompt(50), 3)))
    await asyncio.sleep(0.02)
    assert not queued.done()
    await post(url, "/continue_generation", {})
    assert (await queued)[0] == 200


async def test_key_is_asked_for_and_shown() -> None:
    async with running(SimConfig(api_key="sesame")) as url:
        assert (await get(url, "/health"))[0] == 200
        assert await get(url, "/server_info") == (401, {"error": "Unauthorized"})
        status, info = await get(url, "/server_info", headers={"Authorization": "Bearer sesame"})
        assert (status, info["api_key"]) == (200, "sesame")


async def test_server_info_says_what_it_is(url: str) -> None:
    for path in ("/server_info", "/get_server_info"):
        status, info = await get(url, path)
        assert status == 200
        assert info["simulator"] is True
        assert info["version"].startswith("0.5.18")
        assert info["enable_deterministic_inference"] is True
        assert info["max_total_num_tokens"] == 32768
        assert info["internal_states"][0]["chunked_prefill_size"] == 256
    assert (await get(url, "/model_info"))[1]["is_generation"] is True
    assert (await get(url, "/v1/models"))[1]["data"][0]["max_model_len"] == 4096


async def test_metrics_move(url: str) -> None:
    ids = prompt(600)
    await post(url, "/generate", body(ids, 20))
    await post(url, "/generate", body(ids, 20))
    _, text = await get(url, "/metrics")
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            values[key.split("{")[0]] = max(values.get(key.split("{")[0], 0.0), float(value))
    assert values["sglang:prompt_tokens_total"] == 1200
    assert values["sglang:generation_tokens_total"] == 40
    assert values["sglang:cached_tokens_total"] == 512
    assert values["sglang:kv_evictable_tokens"] > 600
    assert values["sglang:num_requests_total"] == 2
    assert values["sglang:time_to_first_token_seconds_count"] == 2
    assert values["sglang:cuda_graph_passes_total"] > 10


async def test_a_dead_scheduler_is_said_and_nobody_waits_for_it() -> None:
    server = Server(SimConfig(numerics="exact"))
    url = await server.start()
    try:
        task = asyncio.create_task(post(url, "/generate", body(prompt(20), 3000)))
        await until_running(url, 1)

        def broken() -> None:
            raise LookupError("a slot is gone")

        server.engine.post(broken)
        status, answer = await task
        assert status == 500
        assert "a slot is gone" in answer["message"]
        assert (await get(url, "/health"))[0] == 503
        assert (await post(url, "/generate", body(prompt(20), 1)))[0] == 500
        assert (await get(url, "/metrics"))[0] == 500
    finally:
        await server.stop()
