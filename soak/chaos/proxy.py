"""The proxy between soak and a server: passes bytes on, later, slower, in part or not at all, as it is told.

It listens on loopback, ends with its process, and reads nothing of what passes, so that no key can leak from
it. With nothing in force it changes no byte and no order.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from soak.chaos.network import Manner, delay_s, manner_of
from soak.drive.deed import CONNECTION_LOSS, Settings

_PIECE = 1 << 16
_SLOW_PIECES = 20  # a second, of a throttled answer
_BUFFER = 4096  # what a throttled reader's side may hold, so that the server feels it


class ProxyUnusable(Exception):
    """No port for it; the message says why."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One of a client's. answered: bytes of answers passed on so far."""

    number: int
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    answered: int = 0
    pieces: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def reset(self) -> None:
        """As when something on the way gives it up: RST to both sides, what was not sent is dropped."""
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self.done.set()


class Proxy:
    """In front of one server; use as ``async with Proxy(url) as proxy``. Raises ProxyUnusable."""

    def __init__(self, server_url: str, host: str = "127.0.0.1") -> None:
        parts = urlsplit(server_url)
        self._to = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path, self._host = parts.path, host
        self._in_force: dict[str, Settings] = {}
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.passed = 0  # connections so far

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._accepted, self._host, 0, limit=_PIECE)
        except OSError as error:
            raise ProxyUnusable(f"no port on {self._host} for the proxy: {error.strerror}") from error
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{self._host}:{port}{self._path}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    @contextmanager
    def in_force(self, name: str, settings: Settings) -> Iterator[None]:
        """Treat connections so while inside. One of a name at a time."""
        if name in self._in_force:
            raise ValueError(f"{name} is in force already")
        self._in_force[name] = settings
        self._turn()
        if name == CONNECTION_LOSS:
            for connection in tuple(self._connections):
                if self._manner(connection).lost:
                    connection.reset()
        try:
            yield
        finally:
            del self._in_force[name]
            self._turn()

    def _turn(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _manner(self, connection: _Connection) -> Manner:
        return manner_of(self._in_force, connection.number)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in a task
        self._tasks.add(task)
        number, self.passed = self.passed, self.passed + 1
        try:
            await self._connected(number, reader, writer)
        except OSError:
            writer.transport.abort()  # the server is not there: the client sees its connection end
        except asyncio.CancelledError:
            writer.transport.abort()  # the proxy ends, and asyncio would call this task's end an error
        finally:
            self._tasks.discard(task)

    async def _connected(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_server, to_server = await self._reach(manner_of(self._in_force, number))
        connection = _Connection(number, writer, to_server)
        self._connections.add(connection)
        both = [
            asyncio.create_task(self._pass_on(connection, reader, to_server, answers=False)),
            asyncio.create_task(self._pass_on(connection, from_server, writer, answers=True)),
            asyncio.create_task(connection.done.wait()),
        ]
        try:
            # an answer may follow a request whose sending side is closed; the server's end ends both
            await asyncio.wait(both[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.discard(connection)
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, to_server):
                end.close()

    async def _reach(self, manner: Manner) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._to
        if manner.bytes_per_second is None or self._tls is not None:
            return await asyncio.open_connection(host, port, ssl=self._tls, limit=_PIECE)
        loop = asyncio.get_running_loop()
        family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            await loop.sock_connect(sock, address)
        except OSError:
            sock.close()
            raise
        return await asyncio.open_connection(sock=sock, limit=_BUFFER)

    async def _pass_on(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        """One direction until its end."""
        try:
            while piece := await self._next(connection, reader, answers):
                if not await self._treat(connection, writer, piece, answers):
                    return
            while self._manner(connection).deaf:
                await self._changed.wait()
            if writer.can_write_eof():
                writer.write_eof()
        except (OSError, RuntimeError):  # the other side is gone: so is this one
            connection.done.set()

    async def _next(self, connection: _Connection, reader: asyncio.StreamReader, answers: bool) -> bytes:
        manner = self._manner(connection)
        rate = manner.bytes_per_second if answers else None
        if rate is None:
            return await reader.read(_PIECE)
        share = max(1, rate // _SLOW_PIECES)
        began = time.monotonic()
        piece = await reader.read(share)
        await self._unless_changed(len(piece) / rate - (time.monotonic() - began))
        return piece

    async def _unless_changed(self, seconds: float) -> None:
        """Wait, but no longer than what is in force stays so."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def _treat(
        self, connection: _Connection, writer: asyncio.StreamWriter, piece: bytes, answers: bool
    ) -> bool:
        """Hand one piece on; False where the connection has been ended."""
        manner = self._manner(connection)
        if manner.lost:
            connection.reset()
            return False
        while manner.deaf:  # neither side hears of it; what was sent meanwhile arrives if it ever ends
            await self._changed.wait()
            manner = self._manner(connection)
        connection.pieces += 1
        late = delay_s(manner, connection.number, connection.pieces)
        if late:
            await asyncio.sleep(late)
        if answers and manner.cut_after is not None:
            room = max(0, manner.cut_after - connection.answered)
            if room < len(piece):
                writer.write(piece[:room])
                await writer.drain()
                connection.done.set()
                return False
        if answers:
            connection.answered += len(piece)
        writer.write(piece)
        await writer.drain()
        return True
