"""Posting without aiohttp's request objects: the same bytes, the same outcomes, the pool left in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from yarl import URL

from soak.sglang import posting
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Outcome
from soak.sglang.posting import Poster, poster_for
from tests.sglang import honest
from tests.sglang.misbehaving import raw

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

pytestmark = pytest.mark.skipif(
    not aiohttp.__version__.startswith(posting.TESTED), reason="another aiohttp: the ordinary client posts"
)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    length = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


def answering(*answers: bytes, seen: list[bytes] | None = None, connections: list[int] | None = None) -> Any:
    """One connection after the other; each request on it gets the next answer, b"" hangs up."""
    left = list(answers)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connections is not None:
            connections.append(1)
        while left:
            try:
                head, _ = await read_request(reader)
            except asyncio.IncompleteReadError:
                return
            if seen is not None:
                seen.append(head)
            answer = left.pop(0)
            if not answer:
                return
            writer.write(answer)
            await writer.drain()
        await reader.read()

    return handler


async def with_poster(url: str, work: Callable[[Poster, aiohttp.ClientSession], Any], **headers: str) -> Any:
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json", **headers}) as session:
        poster = poster_for(session, URL(f"{url}/generate"), TIMEOUT)
        assert poster is not None
        return await work(poster, session)


async def test_the_head_is_what_aiohttp_sends() -> None:
    seen: list[bytes] = []

    async def both(poster: Poster, session: aiohttp.ClientSession) -> None:
        async with await poster.post(b"[1]") as answer:
            assert await answer.read() == b"{}"
        async with session.post(f"{url}/generate", data=b"[1]") as ordinary:
            assert await ordinary.read() == b"{}"

    async with raw(answering(OK, OK, seen=seen)) as url:
        await with_poster(url, both, Authorization="Bearer sk-1")
    ours, theirs = (sorted(head.lower().split(b"\r\n")) for head in seen)
    assert ours == theirs
    assert b"authorization: bearer sk-1" in ours


async def test_a_connection_serves_again_once_its_answer_was_read_and_only_then() -> None:
    connections: list[int] = []

    async def three(poster: Poster, _: aiohttp.ClientSession) -> None:
        for _turn in range(2):
            async with await poster.post(b"1") as answer:
                assert (answer.status, await answer.read()) == (200, b"{}")
        assert len(connections) == 1
        async with await poster.post(b"1") as answer:
            assert answer.status == 200  # its body is left unread
        async with await poster.post(b"1") as answer:
            assert await answer.read() == b"{}"
        assert len(connections) == 2

    unread = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}"
    async with raw(answering(OK, OK, unread, OK, connections=connections)) as url:
        await with_poster(url, three)


async def test_interim_answers_are_passed_over() -> None:
    async def one(poster: Poster, _: aiohttp.ClientSession) -> None:
        async with await poster.post(b"1") as answer:
            assert (answer.status, await answer.read()) == (200, b"{}")

    async with raw(answering(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK)) as url:
        await with_poster(url, one)


async def test_what_is_said_of_the_body() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}"

    async def one(poster: Poster, _: aiohttp.ClientSession) -> tuple[str, int | None]:
        async with await poster.post(b"1") as answer:
            return answer.content_type, answer.content_length

    async with raw(answering(said)) as url:
        assert await with_poster(url, one) == ("text/event-stream", 2)
    async with raw(answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")) as url:
        assert await with_poster(url, one) == ("application/octet-stream", None)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"", Outcome.DISCONNECTED),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Outcome.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", Outcome.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", Outcome.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", Outcome.MALFORMED),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", None),
    ],
)
async def test_misfortunes_are_the_same_ones_as_aiohttps(
    answer: bytes, outcome: Outcome | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the client, by this way and by the ordinary one."""
    got = []
    for tested in (posting.TESTED, ("0.",)):
        monkeypatch.setattr(posting, "TESTED", tested)
        async with raw(answering(answer)) as url, SGLangClient(url) as client:
            assert (client._poster is None) == (tested == ("0.",))
            (seen,) = await client.generate(honest.request(12, timeout_s=5.0))
            got.append((seen.outcome, seen.http_status, seen.detail))
    assert got[0] == got[1]
    assert outcome in (None, got[0][0])


async def test_cancelling_hangs_up() -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        assert await reader.read() == b""
        gone.set()

    async def cancelled(poster: Poster, session: aiohttp.ClientSession) -> None:
        task = asyncio.create_task(poster.post(b"1"))
        await arrived.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await asyncio.wait_for(gone.wait(), 10)
        assert session.connector is not None
        assert not session.connector._acquired

    async with raw(silent) as url:
        await with_poster(url, cancelled)


async def test_a_key_with_a_line_break_makes_no_second_header() -> None:
    with pytest.raises(ValueError, match=r"line break|header|newline|CR"):
        async with aiohttp.ClientSession(headers={"X-Key": "a\r\nX-More: b"}) as session:
            poster_for(session, URL("http://127.0.0.1:9/generate"), TIMEOUT)


async def test_another_aiohttp_posts_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp, "__version__", "4.0.0")
    async with aiohttp.ClientSession() as session:
        assert poster_for(session, URL("http://127.0.0.1:9/generate"), TIMEOUT) is None
