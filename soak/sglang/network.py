"""What aiohttp raises when a server or the network fails, as outcomes and as words; bodies up to a limit."""

from __future__ import annotations

import zlib
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp import http_exceptions

from soak.sglang.exchange import Outcome
from soak.sglang.posting import Posted

CONNECTION_ERRORS = (aiohttp.ClientError, http_exceptions.HttpProcessingError, OSError, EOFError, zlib.error)


class TooLarge(Exception):
    """A body over the limit."""


# Whether the newest request of this task went out on a kept-alive connection.
_reused: ContextVar[bool] = ContextVar("reused", default=False)


class Connector(aiohttp.TCPConnector):
    """A connector that notes reuse. aiohttp's own tracing tells the same at a sixth of a request's cost."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> Any:
        """A connection from the pool, or a new one."""
        _reused.set(True)
        return await super().connect(req, traces, timeout)

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
    ) -> Any:
        _reused.set(False)
        return await super()._create_connection(req, traces, timeout)


def lost_on_reuse(error: BaseException) -> bool:
    """Whether a kept-alive connection turned out to be closed: the server never saw the request."""
    gone = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError)
    return gone and _reused.get()


async def read_body(response: aiohttp.ClientResponse | Posted, limit: int) -> bytes:
    """The whole body, unpacked. Raises TooLarge as soon as it is over ``limit`` bytes."""
    length = response.content_length
    if length is not None and length <= limit and "Content-Encoding" not in response.headers:
        return await response.read()
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            response.close()
            raise TooLarge(f"the body is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def outcome_of(error: BaseException) -> Outcome:
    """DISCONNECTED, or MALFORMED for what is not HTTP or not what its encoding says."""
    cause = error.__cause__ if isinstance(error, aiohttp.ClientPayloadError) else None
    if isinstance(error, aiohttp.ClientResponseError | zlib.error) or isinstance(
        cause, http_exceptions.ContentEncodingError | zlib.error
    ):
        return Outcome.MALFORMED
    return Outcome.DISCONNECTED


def words_for(error: BaseException) -> str:
    """What happened to the connection, for a person."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            words = f"the name {error.host!r} does not resolve"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            words = f"no TLS connection to {error.host}:{error.port}: {_plain(error)}"
        case aiohttp.ClientConnectorError():
            why = error.os_error.strerror or _plain(error)
            words = f"no connection to {error.host}:{error.port}: {why}"
        case aiohttp.ServerTimeoutError():
            words = f"no connection in time: {_plain(error)}"
        case aiohttp.ServerDisconnectedError():
            words = "the server closed the connection without an answer"
        case aiohttp.ClientResponseError():
            words = f"not HTTP: {' '.join(error.message.split())[:200]}"
        case aiohttp.ClientPayloadError():
            words = f"the body broke off or is damaged: {_plain(error)}"
        case _:
            words = f"the connection was lost: {_plain(error)}"
    return words


def _plain(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
