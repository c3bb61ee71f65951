"""The proxy: changes nothing until told, does each thing that it is told, and stops doing it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from soak.chaos.network import delay_s, manner_of
from soak.chaos.proxy import Proxy
from soak.drive.deed import CONNECTION_LOSS, HALF_OPEN, LATENCY, SLOW_READER, TRUNCATE

ALL = {"share_per_mille": 1000, "seed": 1}
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """In front of a server that answers a line ``n`` with n bytes, and echoes any other line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(b"x" * int(line) if line.strip().isdigit() else line)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with Proxy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as proxy:
            yield proxy
    finally:
        server.close()


async def connect(proxy: Proxy) -> Ends:
    host, _, port = proxy.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def asks(ends: Ends, line: bytes, answer: int) -> bytes:
    ends[1].write(line + b"\n")
    return await asyncio.wait_for(ends[0].readexactly(answer), 20)


async def ended(ends: Ends) -> bytes:
    """All that comes until the other side ends in good order."""
    return await asyncio.wait_for(ends[0].read(), 20)


async def test_nothing_is_changed_with_nothing_in_force(proxy: Proxy) -> None:
    ends = await connect(proxy)
    assert await asks(ends, b"hello", 6) == b"hello\n"
    assert await asks(ends, b"300000", 300_000) == b"x" * 300_000
    ends[1].close()


async def test_latency(proxy: Proxy) -> None:
    ends = await connect(proxy)
    with proxy.in_force(LATENCY, {"delay_ms": 60, "jitter_ms": 20, "seed": 1}):
        began = time.monotonic()
        await asks(ends, b"hello", 6)
        assert time.monotonic() - began >= 0.12  # there and back
    ends[1].close()


async def test_lost_connections_are_reset_the_open_ones_too(proxy: Proxy) -> None:
    ends = await connect(proxy)
    await asks(ends, b"hello", 6)
    with proxy.in_force(CONNECTION_LOSS, ALL):
        with pytest.raises(OSError):
            assert await ended(ends) == b"?"  # an end in good order would be none
        late = await connect(proxy)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await asks(late, b"hello", 6)
    assert await asks(await connect(proxy), b"hello", 6) == b"hello\n"


async def test_a_half_open_connection_says_nothing_and_then_everything(proxy: Proxy) -> None:
    ends = await connect(proxy)
    with proxy.in_force(HALF_OPEN, ALL):
        ends[1].write(b"hello\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ends[0].readexactly(1), 0.2)
    assert await asyncio.wait_for(ends[0].readexactly(6), 20) == b"hello\n"
    ends[1].close()


async def test_a_truncated_answer_ends_in_good_order(proxy: Proxy) -> None:
    with proxy.in_force(TRUNCATE, {**ALL, "after_bytes": 700}):
        ends = await connect(proxy)
        ends[1].write(b"1000\n")
        assert await ended(ends) == b"x" * 700


async def test_a_slow_reader_takes_its_time_and_then_the_rest_at_once(proxy: Proxy) -> None:
    with proxy.in_force(SLOW_READER, {"bytes_per_second": 2000, "seed": 1}):
        ends = await connect(proxy)
        began = time.monotonic()
        assert len(await asks(ends, b"400", 400)) == 400
        assert time.monotonic() - began >= 0.1
        ends[1].write(b"1000000\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ends[0].readexactly(1_000_000), 0.3)
    assert len(await asyncio.wait_for(ends[0].readexactly(500_000), 20)) == 500_000
    ends[1].close()


async def test_a_server_that_is_not_there_ends_the_connection() -> None:
    async with Proxy("http://127.0.0.1:9") as proxy:
        reader, _ = await connect(proxy)
        with contextlib.suppress(OSError):  # a reset says the same
            assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_the_proxy_is_gone_at_its_end(proxy: Proxy) -> None:
    async with Proxy("http://127.0.0.1:9") as other:
        url = other.url
    port = int(url.rpartition(":")[2])
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


def test_which_connections_is_a_matter_of_the_seed_alone() -> None:
    half = {CONNECTION_LOSS: {"share_per_mille": 500, "seed": 9}}
    chosen = [manner_of(half, number).lost for number in range(1000)]
    assert chosen == [manner_of(half, number).lost for number in range(1000)]
    assert 400 < sum(chosen) < 600
    manner = manner_of({LATENCY: {"delay_ms": 5, "jitter_ms": 10, "seed": 2}}, 3)
    delays = {delay_s(manner, 3, piece) for piece in range(50)}
    assert len(delays) > 40
    assert all(0.005 <= delay <= 0.015 for delay in delays)
