"""The stub: soak's own client takes its answers for a server's, and so do clients of OpenAI's endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import orjson
import pytest

from soak.bench.stub.serving import listening
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest, Outcome
from soak.sglang.preflight import examine


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with listening("127.0.0.1", 0) as url:
        yield url


def request(rid: str, tokens: int, **fields: object) -> GenerateRequest:
    ids = np.arange(11, 60, dtype=np.int32)
    return GenerateRequest((ids,), (rid,), max_new_tokens=tokens, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [1, 2, 8, 64])
async def test_answers_are_good_ones(url: str, tokens: int) -> None:
    async with SGLangClient(url) as client:
        for stream in (False, True):
            (answer,) = await client.generate(request(f"r-{stream:d}", tokens, stream=stream))
            assert (answer.outcome, answer.detail) == (Outcome.OK, "")
            assert (answer.prompt_tokens, answer.output_ids.size) == (49, tokens)
            assert len(answer.chunk_s) == (tokens if stream else 0)


async def test_many_at_once_each_get_their_own(url: str) -> None:
    async with SGLangClient(url) as client:
        asked = [client.generate(request(f"r-{i:04d}", 1 + i % 9, stream=i % 2 == 0)) for i in range(100)]
        assert [a.outcome for (a,) in await asyncio.gather(*asked)] == [Outcome.OK] * 100


async def test_it_is_a_server_that_can_be_examined(url: str) -> None:
    async with SGLangClient(url) as client:
        target = await examine(client, affordable_tokens=0)
    assert (target.simulator, target.geometry.vocab_size) == (True, 1000)


async def test_what_it_cannot_do_it_refuses(url: str) -> None:
    async with SGLangClient(url) as client:
        (answer,) = await client.generate(request("r", 4, return_logprob=True))
        assert answer.outcome is Outcome.REJECTED
        assert "scores no tokens" in answer.detail
        assert (await client.get_json("/nothing"))[0] == 404


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_openai_endpoints(url: str, path: str) -> None:
    async with aiohttp.ClientSession() as session:
        for stream in (False, True):
            body = {"model": "soak-stub", "max_tokens": 5, "stream": stream, "prompt": "a"}
            async with session.post(f"{url}/v1/{path}", json=body) as response:
                text = await response.read()
            if not stream:
                assert orjson.loads(text)["usage"]["completion_tokens"] == 5
                continue
            events = [line[6:] for line in text.split(b"\n") if line]
            assert events[-1] == b"[DONE]"
            assert sum(bool(orjson.loads(event)["choices"]) for event in events[:-1]) == 5


async def test_requests_in_pieces_and_in_a_row(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = orjson.dumps({"rid": "x", "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}})
    whole = b"POST /generate HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    for byte in whole:
        writer.write(bytes([byte]))
        await writer.drain()
    writer.write(whole * 2)  # two more before the first answer was read
    for _ in range(3):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        assert orjson.loads(await reader.readexactly(length))["meta_info"]["prompt_tokens"] == 3
    writer.close()
    await writer.wait_closed()
