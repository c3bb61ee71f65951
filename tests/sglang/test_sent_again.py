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
    assert len(rids) == len(set(rids)) == 7
    assert seen.aborted == ["turn-0001", "turn-0002", "turn-0003"]


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

    app = web.Application()
    app.router.add_post("/flush_cache", control)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with SGLangClient(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            done, words = await client.flush(within_s)
    finally:
        await runner.cleanup()
    assert done is flushed
    assert flushed or "pending requests" in words
    assert asked == busy + 1 if flushed else asked >= 2
