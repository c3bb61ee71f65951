"""A client written by hand for this one stub, as the limit of what Python can do. No protection at all."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from urllib.parse import urlsplit

import orjson

from soak.bench.load.bare import body
from soak.bench.load.meter import Meter


class _Connection(asyncio.Protocol):
    """Asks again as soon as it was answered, for as long as the meter wants more."""

    def __init__(self, head: bytes, serials: itertools.count[int], tokens: int, meter: Meter) -> None:
        self._head, self._serials, self._tokens, self._meter = head, serials, tokens, meter
        self._held = b""
        self._transport: Any = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first request."""
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """No more answers."""
        if not self.over.done():
            self.over.set_result(None)

    def _ask(self) -> None:
        if not self._meter.more():
            self._transport.close()
            return
        data = body(next(self._serials), self._tokens, stream=False)
        self._transport.write(self._head % len(data) + data)

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        length = int(self._held[self._held.index(b"Content-Length: ") + 16 : end].split(b"\r\n")[0])
        if len(self._held) < end + 4 + length:
            return
        orjson.loads(self._held[end + 4 : end + 4 + length])
        self._held = self._held[end + 4 + length :]
        self._meter.done()
        self._ask()


async def closed_loop(url: str, meter: Meter, at_once: int, tokens: int) -> None:
    """As many requests as the meter wants, by ``at_once`` connections, short and not streamed."""
    place = urlsplit(url)
    head = f"POST /generate HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: %d\r\n\r\n".encode()
    loop, serials = asyncio.get_running_loop(), itertools.count()
    made = [
        await loop.create_connection(
            lambda: _Connection(head, serials, tokens, meter), place.hostname or "", place.port or 80
        )
        for _ in range(at_once)
    ]
    await asyncio.gather(*(connection.over for _, connection in made))
