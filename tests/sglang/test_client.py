"""The client against servers that misbehave: an outcome for each, an exception for none."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from tests.sglang import honest, misbehaving
from tests.sglang.misbehaving import BEHAVIOURS, Seen, raw, sends, serving

KEY = "sk-marker-0123456789"
SCORED = honest.request(12, return_logprob=True, logprob_start_len=3)
STREAMED = honest.request(12, stream=True, max_new_tokens=6)


async def ask(url: str, wanted: GenerateRequest = SCORED, **options: Any) -> Answer:
    async with SGLangClient(url, **options) as client:
        return (await client.generate(wanted))[0]


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("well", Outcome.OK, ""),
        ("gzip", Outcome.OK, ""),
        ("queue_full", Outcome.REJECTED, "HTTP 503: The request queue is full."),
        ("too_many", Outcome.REJECTED, "HTTP 429: rate limit"),
        ("bad_request", Outcome.REJECTED, "HTTP 400: The input is too long"),
        ("crash", Outcome.SERVER_ERROR, "HTTP 500: Internal Server Error"),
        ("bad_gateway", Outcome.SERVER_ERROR, "HTTP 502: an HTML page titled '502 Bad Gateway'"),
        ("redirect", Outcome.MALFORMED, "HTTP 302"),
        ("error_in_200", Outcome.IN_BAND_ERROR, "boom"),
        ("not_json", Outcome.MALFORMED, "certainly!"),
        ("empty", Outcome.MALFORMED, "an empty body"),
        ("aborted", Outcome.ABORTED, "Aborted"),
        ("fewer_logprobs", Outcome.INVALID_LOGPROBS, "8 input logprobs"),
        ("null_logprob", Outcome.INVALID_LOGPROBS, "input logprob 4 of 9 (token 17, position 7) is null"),
        ("wrong_ids", Outcome.MALFORMED, "token 3"),
        ("wrong_prompt_tokens", Outcome.MALFORMED, "prompt_tokens is 1, 12 ids were sent"),
        ("someone_elses", Outcome.MALFORMED, "another request"),
        ("gzip_damaged", Outcome.MALFORMED, "damaged"),
    ],
)
async def test_whole_answers(name: str, outcome: Outcome, words: str) -> None:
    async with serving(BEHAVIOURS[name]) as url:
        got = await ask(url)
    assert got.outcome is outcome, got.detail
    assert words in got.detail
    assert got.http_status is not None
    assert 0 < got.sent_s <= got.finished_s <= time.monotonic()


@pytest.mark.parametrize(
    ("name", "outcome", "words", "ids"),
    [
        ("well", Outcome.OK, "", 6),
        ("stream_split_character", Outcome.OK, "", 6),
        ("stream_repeats", Outcome.OK, "", 6),
        ("stream_incremental", Outcome.OK, "", 6),
        ("stream_goes_on_after_done", Outcome.OK, "", 6),
        ("stream_half", Outcome.DISCONNECTED, "cut short", 3),
        ("stream_breaks", Outcome.DISCONNECTED, "", 3),
        ("stream_without_done", Outcome.DISCONNECTED, "without [DONE]", 6),
        ("stream_empty", Outcome.DISCONNECTED, "cut short", 0),
        ("stream_error", Outcome.IN_BAND_ERROR, "kv pool exhausted", 2),
        ("stream_not_json", Outcome.MALFORMED, "not JSON", 0),
        ("queue_full", Outcome.REJECTED, "queue is full", 0),
        ("error_in_200", Outcome.IN_BAND_ERROR, "boom", 0),
        ("not_json", Outcome.MALFORMED, "not a server-sent event", 0),
    ],
)
async def test_streams(name: str, outcome: Outcome, words: str, ids: int) -> None:
    async with serving(BEHAVIOURS[name]) as url:
        got = await ask(url, STREAMED)
    assert got.outcome is outcome, got.detail
    assert words in got.detail
    assert got.output_ids.size == ids
    if ids:
        assert got.first_token_s is not None
        assert got.sent_s <= got.first_token_s <= got.finished_s
        assert got.chunk_s == sorted(got.chunk_s)


async def test_a_stalled_stream_ends_on_time_with_what_had_come() -> None:
    wanted = honest.request(12, stream=True, max_new_tokens=6, timeout_s=0.3)
    async with serving(BEHAVIOURS["stream_stalls"]) as url:
        got = await ask(url, wanted)
    assert got.outcome is Outcome.TIMED_OUT
    assert got.detail == "no end after 0.3 s"
    assert got.output_ids.tolist() == [500, 501, 502]
    assert 0.25 < got.finished_s - got.sent_s < 5


async def test_a_request_that_never_ends_ends_on_time() -> None:
    async with serving(BEHAVIOURS["never"]) as url:
        got = await ask(url, honest.request(timeout_s=0.2))
    assert got.outcome is Outcome.TIMED_OUT


async def test_waiting_for_a_free_connection_counts_as_well() -> None:
    async with serving(BEHAVIOURS["never"]) as url, SGLangClient(url, max_connections=1) as client:
        answers = await asyncio.gather(*(client.generate(honest.request(timeout_s=0.2)) for _ in range(3)))
    assert [a.outcome for (a,) in answers] == [Outcome.TIMED_OUT] * 3


async def test_control_calls_do_not_queue_behind_load() -> None:
    seen = Seen()
    async with serving(BEHAVIOURS["never"], seen=seen) as url, SGLangClient(url, max_connections=1) as client:
        stuck = asyncio.ensure_future(client.generate(honest.request()))
        await seen.arrived.wait()
        assert await client.abort(honest.RID)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
    assert seen.aborted == [honest.RID]


@pytest.mark.parametrize("name", ["never", "stream_stalls"])
async def test_cancelling_closes_the_connection(name: str) -> None:
    seen = Seen()
    async with serving(BEHAVIOURS[name], seen=seen) as url, SGLangClient(url) as client:
        task = asyncio.ensure_future(client.generate(STREAMED))
        await seen.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(seen.gone.wait(), 20)


@pytest.mark.parametrize("wanted", [SCORED, STREAMED])
async def test_what_comes_to_be_sent_after_the_end_has_an_outcome(wanted: GenerateRequest) -> None:
    """A scene whose cancelling takes long, on a machine that is too busy: no exception may end the run."""
    async with serving(BEHAVIOURS["well"]) as url:
        async with SGLangClient(url) as client:
            pass
        (got,) = await client.generate(wanted)
    assert got.outcome is Outcome.DISCONNECTED
    assert "closed before this was sent" in got.detail


async def test_fifty_megabytes_pass() -> None:
    async with serving(BEHAVIOURS["huge"]) as url:
        assert (await ask(url)).ok


@pytest.mark.parametrize("name", ["huge", "endless", "gzip_bomb"])
async def test_a_body_over_the_limit_is_given_up(name: str) -> None:
    async with serving(BEHAVIOURS[name]) as url:
        got = await ask(url, max_body_bytes=1 << 20)
    assert got.outcome is Outcome.MALFORMED
    assert got.detail == "the body is larger than 1048576 bytes"


async def test_the_event_loop_goes_on_while_a_big_answer_is_read() -> None:
    wanted = honest.request(60_000, return_logprob=True, logprob_start_len=0)
    body = honest.body(wanted)

    async def big(_: Any, __: GenerateRequest) -> Any:
        return web.Response(body=body, content_type="application/json")

    async with serving(big) as url, SGLangClient(url) as client:
        task = asyncio.ensure_future(client.generate(wanted))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert (await task)[0].ok
    assert turns > 50


class TestConnection:
    async def test_refused_then_back_again(self) -> None:
        async with serving() as url:
            port = int(url.rpartition(":")[2])
        async with SGLangClient(url) as client:
            (got,) = await client.generate(SCORED)
            assert got.outcome is Outcome.DISCONNECTED
            assert f"no connection to 127.0.0.1:{port}" in got.detail
            async with serving(port=port):
                (got,) = await client.generate(SCORED)
                assert got.ok, got.detail
            (got,) = await client.generate(SCORED)
            assert got.outcome is Outcome.DISCONNECTED

    async def test_a_name_that_does_not_resolve(self) -> None:
        got = await ask("http://no-such-host.invalid:1")
        assert (got.outcome, got.detail) == (
            Outcome.DISCONNECTED,
            "the name 'no-such-host.invalid' does not resolve",
        )

    async def test_no_tls_where_tls_was_named(self) -> None:
        async with serving() as url:
            got = await ask(url.replace("http:", "https:"))
        assert got.outcome is Outcome.DISCONNECTED

    async def test_a_new_connection_closed_by_the_server_is_not_tried_again(self) -> None:
        requests = 0

        async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal requests
            await misbehaving.read_request(reader)
            requests += 1

        async with raw(closes) as url:
            got = await ask(url)
        assert got.outcome is Outcome.DISCONNECTED
        assert requests == 1

    @pytest.mark.parametrize(
        ("sent", "outcome"),
        [
            ((b"",), Outcome.DISCONNECTED),
            ((b"HTTP/1.1 200 OK\r\nContent-Le",), Outcome.DISCONNECTED),
            ((b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",), Outcome.DISCONNECTED),
            ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",), Outcome.DISCONNECTED),
            ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{",), Outcome.MALFORMED),
            ((b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",), Outcome.MALFORMED),
            ((b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",), Outcome.MALFORMED),
            ((b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",), Outcome.MALFORMED),
            ((b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",), Outcome.MALFORMED),
            ((b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",), Outcome.SERVER_ERROR),
            ((b"HTTP/1.1 abc\r\n\r\n",), Outcome.MALFORMED),
            ((b"SSH-2.0-OpenSSH_9.2\r\n",), Outcome.MALFORMED),
            ((b"\x00\xff" * 50,), Outcome.MALFORMED),
        ],
    )
    @pytest.mark.parametrize("abort", [False, True])
    async def test_what_is_not_http(self, sent: tuple[bytes, ...], outcome: Outcome, abort: bool) -> None:
        async with raw(sends(*sent, abort=abort)) as url:
            got = await ask(url)
        # A reset may overtake the bytes before it.
        assert got.outcome is outcome or (abort and got.outcome is Outcome.DISCONNECTED), got.detail
        assert got.detail

    async def test_random_bytes(self) -> None:
        words = np.random.Generator(np.random.Philox(7))
        for i in range(40):
            noise = words.bytes(int(words.integers(0, 300)))
            head = (
                b"",
                b"HTTP/1.1 200 OK\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            )[i % 3]
            async with raw(sends(head + noise)) as url:
                for wanted in (SCORED, STREAMED):
                    got = await ask(url, wanted)
                    assert got.outcome in (Outcome.MALFORMED, Outcome.DISCONNECTED)
                    assert got.detail

    async def test_connections_are_used_again(self) -> None:
        peers: set[Any] = set()

        async def noting(request: Any, wanted: GenerateRequest) -> Any:
            peers.add(request.transport.get_extra_info("peername"))
            return await misbehaving.well(request, wanted)

        async with serving(noting) as url, SGLangClient(url) as client:
            for wanted in (SCORED, STREAMED, SCORED, STREAMED, STREAMED):
                assert (await client.generate(wanted))[0].ok
        assert len(peers) == 1

    async def test_no_tasks_are_left_behind(self) -> None:
        before = asyncio.all_tasks()
        async with serving(BEHAVIOURS["stream_half"]) as url, SGLangClient(url) as client:
            await asyncio.gather(*(client.generate(STREAMED) for _ in range(20)))
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() <= before


async def test_a_batch() -> None:
    for stream in (False, True):
        wanted = honest.request(9, 3, return_logprob=True, logprob_start_len=2, stream=stream)
        async with serving() as url, SGLangClient(url) as client:
            got = await client.generate(wanted)
        assert [a.rid for a in got] == list(wanted.rids)
        assert all(a.ok for a in got)


async def test_a_request_of_more_than_a_megabyte() -> None:
    seen = Seen()
    wanted = honest.request(400_000)
    async with serving(seen=seen) as url:
        got = await ask(url, wanted)
    assert got.ok, got.detail
    np.testing.assert_array_equal(seen.requests[0].prompts[0], wanted.prompts[0])


class TestControl:
    async def test_each_call_reaches_its_endpoint(self) -> None:
        seen = Seen()
        async with serving(seen=seen) as url, SGLangClient(url + "/") as client:
            assert await client.abort("soak-a-1")
            assert await client.flush(2.5) == (True, "HTTP 200: ok")
            assert await client.pause("retract") == (True, "HTTP 200: ok")
            assert await client.continue_() == (True, "HTTP 200: ok")
        assert seen.controls == [
            ("/abort_request", {"rid": "soak-a-1"}),
            ("/flush_cache", None),
            ("/pause_generation", {"mode": "retract"}),
            ("/continue_generation", {}),
        ]

    async def test_aborting_many_aborts_each_once_and_no_other(self) -> None:
        seen = Seen()
        rids = [f"soak-run-{i:010d}" for i in range(300)]
        async with serving(seen=seen) as url, SGLangClient(url) as client:
            assert await client.abort_all_of([*rids, rids[0]]) == 300
            assert await client.abort_all_of([]) == 0
        assert sorted(seen.aborted) == rids

    async def test_an_empty_rid_is_never_sent(self) -> None:
        async with SGLangClient("http://127.0.0.1:1") as client:
            with pytest.raises(ValueError, match="prefix"):
                await client.abort("")

    async def test_a_server_that_is_gone(self) -> None:
        async with serving() as url:
            pass
        async with SGLangClient(url) as client:
            assert not await client.abort("soak-a-1")
            assert await client.abort_all_of(["a", "b"]) == 0
            ok, words = await client.flush(1)
            assert (ok, "no connection to 127.0.0.1" in words) == (False, True)
            status, value, words = await client.get_json("/server_info")
            assert (status, value, "no connection" in words) == (None, None, True)
            assert await client.metrics_text() is None

    async def test_json_and_what_is_not(self) -> None:
        async def page(_: Any) -> Any:
            return web.Response(text="<title>Hi</title>", content_type="text/html")

        async def missing(_: Any) -> Any:
            return web.json_response({"detail": "Not Found"}, status=404)

        routes = {"/a": {"x": [1]}, "/page": page, "/missing": missing, "/metrics": page}
        async with serving(routes=routes) as url, SGLangClient(url) as client:
            assert await client.get_json("/a") == (200, {"x": [1]}, "")
            assert await client.get_json("/page") == (
                200,
                None,
                "HTTP 200, not JSON: an HTML page titled 'Hi'",
            )
            status, value, words = await client.get_json("/missing")
            assert (status, value, words) == (404, {"detail": "Not Found"}, "HTTP 404: Not Found")
            assert await client.metrics_text() == "<title>Hi</title>"

    async def test_a_path_prefix_is_kept(self) -> None:
        async with serving(routes={"/gateway/a": 7}) as url, SGLangClient(url + "/gateway/") as client:
            assert (await client.get_json("/a"))[1] == 7


class TestKey:
    async def test_it_travels_in_one_header_only(self) -> None:
        seen = Seen()
        async with serving(seen=seen) as url:
            await ask(url, api_key=KEY)
            async with SGLangClient(url, api_key=KEY) as client:
                await client.abort("soak-a-1")
        assert [h["Authorization"] for h in seen.headers] == [f"Bearer {KEY}"] * 2
        for headers in seen.headers:
            assert [name for name, value in headers.items() if KEY in value] == ["Authorization"]

    async def test_without_a_key_there_is_no_header(self) -> None:
        seen = Seen()
        async with serving(seen=seen) as url:
            await ask(url)
        assert "Authorization" not in seen.headers[0]

    def test_it_is_not_printed(self) -> None:
        client = SGLangClient("http://127.0.0.1:1", api_key=KEY)
        assert repr(client) == "SGLangClient('http://127.0.0.1:1', api_key=[redacted])"
        assert KEY not in str(vars(client))

    @pytest.mark.parametrize("status", [200, 400, 401, 500])
    async def test_a_server_that_echoes_it(self, status: int) -> None:
        words = f"wrong key {KEY}"
        for body in (orjson.dumps({"error": {"message": words}}), words.encode(), b"data: " + words.encode()):
            async with serving(misbehaving.replies(status, body, "text/plain")) as url:
                for wanted in (SCORED, STREAMED):
                    got = await ask(url, wanted, api_key=KEY)
                    assert not got.ok
                    assert KEY not in repr(got)

    async def test_echoed_in_text_in_server_info_and_in_metrics(self) -> None:
        async def metrics(_: Any) -> Any:
            return web.Response(text=f'x{{key="{KEY}"}} 1')

        info = {"api_key": KEY, "internal_states": [{"api_key": f"Bearer {KEY}", KEY: [KEY, {"x": KEY}]}]}
        generate = misbehaving.whole(lambda v: v.update(text=KEY))
        async with serving(generate, routes={"/server_info": info, "/metrics": metrics}) as url:
            async with SGLangClient(url, api_key=KEY) as client:
                (got,) = await client.generate(SCORED)
                assert got.ok
                assert got.text == "[redacted]"
                _, value, _ = await client.get_json("/server_info")
                assert KEY not in str(value)
                assert "redacted" in str(value)
                assert KEY not in str(await client.metrics_text())

    async def test_it_is_not_carried_along_by_a_redirect(self) -> None:
        seen = Seen()
        async with serving(seen=seen) as elsewhere:
            there = misbehaving.replies(307, b"", Location=elsewhere + "/generate")
            async with serving(there) as url:
                got = await ask(url, api_key=KEY)
        assert got.outcome is Outcome.MALFORMED
        assert not seen.requests

    @pytest.mark.parametrize("key", ["", " x", "a\r\nX: y", "ключ"])
    def test_a_key_that_cannot_be_one(self, key: str) -> None:
        with pytest.raises(ValueError, match="printable ASCII") as caught:
            SGLangClient("http://127.0.0.1:1", api_key=key)
        assert not key or key not in str(caught.value)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://x", "http://", "", "http://me:pass@host"])
def test_an_address_that_cannot_be_one(url: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        SGLangClient(url)
    assert "pass@" not in str(caught.value)


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await SGLangClient("http://127.0.0.1:1").generate(SCORED)
