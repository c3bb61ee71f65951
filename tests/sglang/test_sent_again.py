"""What the client sends again: a request that a kept-alive connection lost, and a flush of a busy server."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from aiohttp import web

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest, Outcome
from tests.sglang import honest, misbehaving
from tests.sglang.misbehaving import Behaviour, Seen, serving

SCORED = honest.request(12, return_logprob=True, logprob_start_len=3)
STREAMED = honest.request(12, stream=True, max_new_tokens=6)


def one_answer_each(hangs_from: int | None = None) -> Behaviour:
    """Answers one request of each connection and resets the next; from that connection on it hangs."""
    met = set[Any]()

    async def behaviour(request: Any, asked: GenerateRequest) -> Any:
        peer = request.transport.get_extra_info("peername")
        if peer in met:
            request.transport.abort()
            raise ConnectionResetError
        met.add(peer)
        if hangs_from is not None and len(met) >= hangs_from:
            await asyncio.sleep(60)
        return await misbehaving.well(request, asked)

    return behaviour


@pytest.mark.parametrize("wanted", [SCORED, STREAMED], ids=["whole", "streamed"])
async def test_a_kept_connection_closed_by_the_server_is_no_failure(wanted: GenerateRequest) -> None:
    """It may have read the request: what is sent again has another rid, and the first is taken back."""
    seen = Seen()
    async with serving(one_answer_each(), seen=seen) as url, SGLangClient(url) as client:
        for turn in range(4):
            asked = dataclasses.replace(wanted, rids=(f"turn-{turn:04d}",))
            (got,) = await client.generate(asked)
            assert got.ok, got.detail
            assert got.rid == asked.rids[0]
    rids = [rid for request in seen.requests for rid in request.rids]
    assert len(rids) == len(set(rids)) == 6, "two turns found a kept connection"
    assert seen.aborted == ["turn-0001", "turn-0003"]


@pytest.mark.parametrize("wanted", [SCORED, STREAMED], ids=["whole", "streamed"])
async def test_what_is_sent_again_goes_out_on_a_new_connection(wanted: GenerateRequest) -> None:
    """The others that were kept may be closed as well: a server that was started anew has none of them."""
    seen = Seen()
    async with serving(one_answer_each(), seen=seen) as url, SGLangClient(url) as client:
        asked = [dataclasses.replace(wanted, rids=(f"turn-{n}",)) for n in range(6)]
        for (got,) in await asyncio.gather(*map(client.generate, asked)):
            assert got.ok, got.detail  # six connections are kept now
        (got,) = await client.generate(dataclasses.replace(wanted, rids=("turn-6",)))
        assert got.ok, got.detail


async def test_a_control_call_goes_out_again_on_a_new_connection() -> None:
    met = set[Any]()

    async def once(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        if peer in met:
            request.transport.abort()
        met.add(peer)
        await asyncio.sleep(0.02)  # so that several are on their way at once
        return web.Response(text="metrics")

    async with serving(routes={"/metrics": once}) as url, SGLangClient(url) as client:
        assert await asyncio.gather(*(client.metrics_text() for _ in range(4))) == ["metrics"] * 4
        assert await client.metrics_text() == "metrics"


async def test_what_was_sent_again_is_taken_back_under_both_names() -> None:
    seen = Seen()
    async with serving(one_answer_each(hangs_from=2), seen=seen) as url, SGLangClient(url) as client:
        assert (await client.generate(SCORED))[0].ok
        asked = dataclasses.replace(SCORED, rids=("turn-0001",), timeout_s=0.5)
        (got,) = await client.generate(asked)
        assert (got.outcome, got.rid) == (Outcome.TIMED_OUT, "turn-0001")
        assert await client.abort("turn-0001")
    assert seen.aborted == ["turn-0001", "turn-0001", seen.requests[-1].rids[0]]


@pytest.mark.parametrize(
    ("busy", "within_s", "flushed"), [(0, 0.0, True), (3, 5.0, True), (1000, 0.3, False)]
)
async def test_a_flush_is_asked_for_until_the_server_is_idle(
    busy: int, within_s: float, flushed: bool
) -> None:
    asked = 0

    async def control(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text="pending requests", status=400 if asked <= busy else 200)

    async with serving(routes={"/flush_cache": control}) as url, SGLangClient(url) as client:
        done, words = await client.flush(within_s)
    assert done is flushed
    assert flushed or "pending requests" in words
    assert asked == busy + 1 if flushed else asked >= 2
