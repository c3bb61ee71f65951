"""Posting to one address over aiohttp's connection pool and response parser, without its request objects.

Building a ClientRequest, a ClientResponse and what belongs to them costs more CPU than all the rest of a
short request. Here the head of the request is written once; pool, TLS, name look-up, parser, decompression
and their limits stay aiohttp's. It follows no redirect, keeps no cookie, asks no proxy and knows no
environment: neither does the session it belongs to. aiohttp does not promise to keep the parts that it
calls: it is used with the versions it was tested with, and ``poster_for`` gives None for others.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import http_exceptions
from multidict import CIMultiDictProxy
from yarl import URL

TESTED = ("3.14.",)
"""Beginnings of aiohttp's versions whose inner parts are known to be as they are used here."""

LONGEST = 1 << 20
"""Bytes of a body that goes out in one piece; the ordinary client sends longer ones, in parts."""


class Posted:
    """One answer: its head is there, its body comes through ``content``. Use as ``async with``.

    As much of aiohttp's ClientResponse as soak looks at, by the same names.
    """

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(
        self,
        connection: Any,
        status: int,
        headers: CIMultiDictProxy[str],
        content: aiohttp.StreamReader,
    ) -> None:
        self._connection = connection
        self.status, self.headers, self.content = status, headers, content
        content.on_eof(self._whole)

    @property
    def content_type(self) -> str:
        """Media type without its parameters, in small letters; what RFC 9110 has for none said."""
        said = self.headers.get("Content-Type", "application/octet-stream")
        return said.partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        """Bytes of the body as it travels, None if that was not said."""
        said = self.headers.get("Content-Length")
        return None if said is None else int(said)

    async def read(self) -> bytes:
        """All of the body."""
        return await self.content.read()

    def close(self) -> None:
        """Let go of the connection for good."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _whole(self) -> None:
        """The body has ended: the connection may serve another request."""
        connection = self._connection
        if connection is None or (connection.protocol is not None and connection.protocol.upgraded):
            return
        self._connection = None
        connection.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()  # nothing where the body has ended


class Poster:
    """Posts JSON to one address. Raises what aiohttp's session raises for the same misfortunes."""

    def __init__(self, session: aiohttp.ClientSession, url: URL, timeout: aiohttp.ClientTimeout) -> None:
        connector = session.connector
        assert connector is not None  # noqa: S101 - for the type checker: an open session has one
        self._connector, self._timeout = connector, timeout
        # tells the pool where to connect, and what head aiohttp would send; never sent itself
        self._request = aiohttp.ClientRequest(
            "POST", url, headers=session.headers, loop=asyncio.get_running_loop(), session=session, ssl=True
        )
        lines = [f"POST {url.raw_path_qs} HTTP/1.1"]
        lines += [
            f"{name}: {value}"
            for name, value in self._request.headers.items()
            if name.lower() not in ("content-length", "transfer-encoding")
        ]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a line break in a header")
        self._head = ("\r\n".join(lines) + "\r\nContent-Length: ").encode()

    async def post(self, body: bytes) -> Posted:
        """Send ``body`` and wait for the head of the answer, whatever its status. Cancelling hangs up."""
        try:
            connection = await self._connector.connect(self._request, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self._request.url}") from error
        try:
            return await self._ask(connection, body)
        except http_exceptions.HttpProcessingError as error:
            connection.close()
            raise aiohttp.ClientResponseError(
                self._request.request_info,
                (),
                status=error.code,
                message=error.message,
                headers=error.headers,
            ) from error
        except aiohttp.ClientError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise aiohttp.ClientOSError(*error.args) from error
        except BaseException:
            connection.close()
            raise

    async def _ask(self, connection: Any, body: bytes) -> Posted:
        protocol = connection.protocol
        protocol.set_response_params(read_until_eof=True)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        while True:
            message, content = await protocol.read()
            if not 100 <= message.code <= 199 or message.code == 101:
                return Posted(connection, message.code, message.headers, content)


def poster_for(session: aiohttp.ClientSession, url: URL, timeout: aiohttp.ClientTimeout) -> Poster | None:
    """One for that address, None where this aiohttp is not one that it was tested with."""
    if not aiohttp.__version__.startswith(TESTED):
        return None
    return Poster(session, url, timeout)
