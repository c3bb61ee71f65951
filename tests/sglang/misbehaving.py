"""A server that does everything wrong, one way at a time: in-process, on a free loopback port.

``async with serving(BEHAVIOURS["null_logprob"]) as url`` answers POST /generate that way and the control
endpoints well; ``async with raw(handler) as url`` hands over the bare connection.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from soak.sglang.exchange import GenerateRequest
from tests.sglang import honest

Behaviour = Callable[[web.Request, GenerateRequest], Awaitable[web.StreamResponse]]
Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
DONE = b"data: [DONE]\n\n"


@dataclass
class Seen:
    """What the server saw."""

    requests: list[GenerateRequest] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    controls: list[tuple[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


def understood(body: bytes) -> GenerateRequest:
    """The request that a body of POST /generate stands for."""
    sent = orjson.loads(body)
    rids = sent["rid"]
    prompts = sent.get("input_ids", sent.get("text"))
    if isinstance(rids, str):
        rids, prompts = [rids], [prompts]
    return GenerateRequest(
        prompts=tuple(p if isinstance(p, str) else np.array(p, np.int32) for p in prompts),
        rids=tuple(rids),
        max_new_tokens=sent["sampling_params"]["max_new_tokens"],
        return_logprob=sent.get("return_logprob", False),
        logprob_start_len=sent.get("logprob_start_len"),
        top_logprobs_num=sent.get("top_logprobs_num", 0),
        token_ids_logprob=sent.get("token_ids_logprob"),
        extra_key=sent.get("extra_key"),
        stream=sent["stream"],
    )


@asynccontextmanager
async def serving(
    behaviour: Behaviour | None = None,
    *,
    seen: Seen | None = None,
    routes: Mapping[str, Any] | None = None,
    port: int = 0,
) -> AsyncIterator[str]:
    """A server whose /generate behaves so (well, by default). ``routes``: what other paths answer, as JSON,
    or a handler of aiohttp."""
    seen = seen or Seen()

    async def generate(request: web.Request) -> web.StreamResponse:
        seen.headers.append(dict(request.headers))
        wanted = understood(await request.read())
        seen.requests.append(wanted)
        seen.arrived.set()
        try:
            return await (behaviour or well)(request, wanted)
        except (asyncio.CancelledError, ConnectionError):
            seen.gone.set()
            raise

    async def control(request: web.Request) -> web.StreamResponse:
        data = await request.read()
        seen.headers.append(dict(request.headers))
        seen.controls.append((request.path_qs, orjson.loads(data) if data else None))
        if request.path == "/abort_request":
            seen.aborted.append(orjson.loads(data)["rid"])
        return web.Response(text="ok")

    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/generate", generate)
    for path, answer in (routes or {}).items():
        app.router.add_route("*", path, answer if callable(answer) else _json(answer))
    for path in ("/abort_request", "/flush_cache", "/pause_generation", "/continue_generation"):
        app.router.add_post(path, control)
    # A handler hears that its client has gone, as under uvicorn.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _json(value: Any) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(value)

    return handler


@asynccontextmanager
async def raw(handler: Raw) -> AsyncIterator[str]:
    """A server of bare connections. ``handler`` gets each one before anything was read."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass  # the client has gone: what the test is about
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One HTTP request off a bare connection; its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
    return await reader.readexactly(length)


def sends(*writes: bytes, hold: bool = False, abort: bool = False) -> Raw:
    """A bare server that reads a request, writes these bytes and closes (or holds, or resets)."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)
        if hold:
            await reader.read()
        if abort:
            writer.transport.abort()

    return handler


async def well(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
    """An honest answer."""
    if not wanted.stream:
        return web.Response(body=honest.body(wanted), content_type="application/json")
    return await streamed(request, honest.stream(wanted))


async def streamed(request: web.Request, *writes: bytes, then: str = "end") -> web.StreamResponse:
    """A stream of these writes that then ends, breaks off or stalls."""
    response = web.StreamResponse(headers=SSE)
    await response.prepare(request)
    for data in writes:
        await response.write(data)
        await asyncio.sleep(0)
    if then == "stall":
        await asyncio.Event().wait()
    if then == "break":
        assert request.transport is not None
        request.transport.abort()
    return response


def whole(change: Callable[[dict[str, Any]], object]) -> Behaviour:
    """An honest answer, bent."""

    async def behaviour(_: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        value = honest.answer(wanted)
        change(value)
        return web.Response(body=orjson.dumps(value), content_type="application/json")

    return behaviour


def replies(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Behaviour:
    """The same answer to everything."""

    async def behaviour(_: web.Request, __: GenerateRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body, content_type=kind, headers=headers)

    return behaviour


def streams(make: Callable[[GenerateRequest], tuple[bytes, ...]], then: str = "end") -> Behaviour:
    """A stream of the writes that ``make`` gives."""

    async def behaviour(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        return await streamed(request, *make(wanted), then=then)

    return behaviour


async def zipped(_: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
    """An honest answer in gzip."""
    return web.Response(
        body=gzip.compress(honest.body(wanted)),
        content_type="application/json",
        headers={"Content-Encoding": "gzip"},
    )


async def never(_: web.Request, __: GenerateRequest) -> web.StreamResponse:
    """No answer, ever."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def huge(_: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
    """An honest answer of 50 MB."""
    value = {**honest.answer(wanted), "padding": "x" * 50_000_000}
    return web.Response(body=orjson.dumps(value), content_type="application/json")


async def endless(request: web.Request, _: GenerateRequest) -> web.StreamResponse:
    """A body without end."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)


async def bomb(_: web.Request, __: GenerateRequest) -> web.StreamResponse:
    """64 MB of blanks in a body of 300 KB."""
    return web.Response(
        body=gzip.compress(b" " * (64 << 20), 1),
        content_type="application/json",
        headers={"Content-Encoding": "gzip"},
    )


def half(wanted: GenerateRequest) -> tuple[bytes, ...]:
    """The first half of a stream."""
    return (honest.sse(honest.events(wanted)[: wanted.max_new_tokens // 2]),)


def split_character(wanted: GenerateRequest) -> tuple[bytes, ...]:
    """A stream in two writes, cut inside a character of two bytes."""
    data = honest.stream(wanted)
    at = data.index("ä".encode()) + 1
    return data[:at], data[at:]


def with_error(wanted: GenerateRequest) -> tuple[bytes, ...]:
    """A stream that fails after its second event."""
    error = {"error": {"message": "kv pool exhausted", "type": "x", "code": 500, "retryable": False}}
    return honest.sse([*honest.events(wanted)[:2], error]), DONE


BEHAVIOURS: dict[str, Behaviour] = {
    "well": well,
    "queue_full": replies(503, b'{"object":"error","message":"The request queue is full.","code":503}'),
    "too_many": replies(429, b'{"error":{"message":"rate limit"}}'),
    "bad_request": replies(400, b'{"error":{"message":"The input is too long"}}'),
    "crash": replies(500, b"Internal Server Error", "text/plain"),
    "bad_gateway": replies(502, b"<html><title>502 Bad Gateway</title></html>", "text/html"),
    "redirect": replies(302, b"", Location="http://127.0.0.1:9/steal"),
    "error_in_200": replies(200, b'{"error":{"message":"boom"}}'),
    "not_json": replies(200, b"certainly!", "text/plain"),
    "empty": replies(200, b""),
    "aborted": whole(
        lambda v: v["meta_info"].update(finish_reason={"type": "abort", "message": "Aborted"}),
    ),
    "fewer_logprobs": whole(lambda v: v["meta_info"]["input_token_logprobs"].pop()),
    "null_logprob": whole(lambda v: v["meta_info"]["input_token_logprobs"][4].__setitem__(0, None)),
    "wrong_ids": whole(lambda v: v["meta_info"]["input_token_logprobs"][4].__setitem__(1, 3)),
    "wrong_prompt_tokens": whole(lambda v: v["meta_info"].update(prompt_tokens=1)),
    "someone_elses": whole(lambda v: v["meta_info"].update(id="soak-test-9999999999")),
    "gzip": zipped,
    "gzip_damaged": replies(200, b"\x1f\x8b\x08certainly not", **{"Content-Encoding": "gzip"}),
    "gzip_bomb": bomb,
    "never": never,
    "huge": huge,
    "endless": endless,
    "stream_half": streams(half, "end"),
    "stream_breaks": streams(half, "break"),
    "stream_stalls": streams(half, "stall"),
    "stream_without_done": streams(lambda w: (honest.sse(honest.events(w)),)),
    "stream_error": streams(with_error),
    "stream_split_character": streams(split_character),
    "stream_repeats": streams(lambda w: (honest.sse([e for e in honest.events(w) for _ in range(3)]), DONE)),
    "stream_incremental": streams(lambda w: (honest.stream(w, incremental=True),)),
    "stream_empty": streams(lambda w: ()),
    "stream_not_json": streams(lambda w: (b"data: {certainly}\n\n",)),
    "stream_goes_on_after_done": streams(lambda w: (honest.stream(w),), "stall"),
}
