"""The stub's HTTP, written by hand on uvloop: it must be faster than any client that is measured against it.

Knows just enough of HTTP/1.1 for clients that keep connections alive and say Content-Length. It checks
nothing and generates nothing, so it is no simulator: ``soak sim`` is.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import orjson

from soak.bench.stub import answers
from soak.run.event_loop import runner

_JSON = b"application/json"
_END = b"\r\n\r\n"
_SSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_TOKENS = 64  # of an answer whose length nobody said


def _response(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        _JSON,
        len(body),
        body,
    )


def _event(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


_DONE = _event(b"[DONE]") + b"0\r\n\r\n"
_FIXED = {
    b"/server_info": _response(orjson.dumps(answers.server_info())),
    b"/get_server_info": _response(orjson.dumps(answers.server_info())),
    b"/model_info": _response(orjson.dumps(answers.model_info())),
    b"/get_model_info": _response(orjson.dumps(answers.model_info())),
    b"/v1/models": _response(orjson.dumps(answers.models())),
    b"/health": _response(b"{}"),
    b"/abort_request": _response(b"{}"),
    b"/flush_cache": _response(b"{}"),
}
_NOT_FOUND = _response(b'{"detail":"Not Found"}', b"404 Not Found")
_BAD = _response(
    b'{"error":{"message":"the stub scores no tokens and takes one prompt a request"}}', b"400 Bad Request"
)


def _most(value: Any) -> int:
    tokens = value if type(value) is int and value > 0 else _TOKENS
    return min(tokens, answers.MOST_TOKENS)


class _Connection(asyncio.Protocol):
    """One client. A stream goes out one event each turn of the event loop, as others' do in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held = b""
        self._events: deque[bytes] = deque()
        self._transport: Any = None  # uvloop's are not asyncio's own

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._transport = None
        self._events.clear()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, however they were split."""
        held = self._held + data if self._held else data
        while not self._events and self._transport is not None:
            end = held.find(_END)
            if end < 0:
                break
            head = held[:end]
            length = _content_length(head)
            if len(held) < end + 4 + length:
                break
            self._answer(head, held[end + 4 : end + 4 + length])
            held = held[end + 4 + length :]
        self._held = held

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path == b"/generate":
            self._generate(body)
        elif path in (b"/v1/completions", b"/v1/chat/completions"):
            self._complete(body, chat=b"chat" in path)
        else:
            self._write(_FIXED.get(path, _NOT_FOUND))

    def _generate(self, body: bytes) -> None:
        asked = orjson.loads(body)
        rid, ids, text = asked.get("rid"), asked.get("input_ids"), asked.get("text")
        one = isinstance(text, str) or (isinstance(ids, list) and ids and type(ids[0]) is int)
        if not one or asked.get("return_logprob"):
            self._write(_BAD)
            return
        tokens = _most((asked.get("sampling_params") or {}).get("max_new_tokens"))
        name = str(rid or "stub").encode()
        length = b"%d" % (len(ids) if isinstance(ids, list) else max(1, len(str(text).split())))
        if asked.get("stream"):
            self._stream(event.of(name, length) for event in answers.streamed(tokens))
        else:
            self._write(_response(answers.whole(tokens).of(name, length)))

    def _complete(self, body: bytes, *, chat: bool) -> None:
        asked = orjson.loads(body)
        tokens = _most(asked.get("max_completion_tokens") or asked.get("max_tokens"))
        if asked.get("stream"):
            self._stream(answers.completion_events(tokens, chat=chat))
        else:
            self._write(_response(answers.completion(tokens, chat=chat)))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _stream(self, events: Iterable[bytes]) -> None:
        self._events.extend(_event(event) for event in events)
        self._events.append(_DONE)
        self._events[0] = _SSE + self._events[0]
        self._next()

    def _next(self) -> None:
        if not self._events:
            return
        self._write(self._events.popleft())
        if self._events:
            self._loop.call_soon(self._next)
        elif self._held:
            self.data_received(b"")


def _content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    return 0 if at < 0 else int(lower[at + 17 :].split(b"\r\n", 1)[0])


@contextlib.asynccontextmanager
async def listening(host: str, port: int) -> AsyncIterator[str]:
    """Answers for the length of the block; the URL. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(loop), host, port, backlog=1024)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _serve(host: str, port: int, ready: Callable[[str], None]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with listening(host, port) as url:
        ready(url)
        await stop.wait()


def run(host: str, port: int, ready: Callable[[str], None]) -> None:
    """Answer on that address until SIGINT or SIGTERM; ``ready`` is told the URL. Raises OSError."""
    with runner() as loop:
        loop.run(_serve(host, port, ready))
