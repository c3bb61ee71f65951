"""The HTTP client: GenerateRequests out, Answers back, and SGLang's control endpoints.

Never raises for what a server or a network can do: that is an outcome. Never shows the API key, in no text of
its own and in none that a server sends back. Never follows a redirect, so the key goes nowhere else. What it
sends twice is only a request that a kept-alive connection lost before any answer, and that under another rid.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import aiohttp
import orjson
from yarl import URL

from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from soak.sglang.network import (
    CONNECTION_ERRORS,
    Connector,
    TooLarge,
    lost_on_reuse,
    outcome_of,
    read_body,
    words_for,
)
from soak.sglang.posting import LONGEST, Posted, Poster, poster_for
from soak.sglang.secret import Secret
from soak.sglang.wire import StreamDecoder, decode_generate, encode_generate, refusal

WORKER_HEADER = "x-smg-worker-id"
"""By which SGLang's gateway names the worker that answered."""

_MOST_WORKERS = 256  # names kept
_BODY_CAP = 64 << 20
_THREAD_FROM = 512 * 1024  # bytes: parsing more than this on the event loop would stall every other request
_CONTROL_CONNECTIONS = 64
_ASK_AGAIN_S = 0.1
_AGAIN = "-again"  # behind the rid of a request that is sent a second time
_CONTROL_TIMEOUT_S = 15.0
_AFTER_DONE_S = 0.25  # how long the end of the body may lag behind [DONE] before the connection is given up
# uvicorn, under SGLang, closes an idle connection after 5 s: never use one that old.
_KEEPALIVE_S = 4.0


class SGLangClient:
    """An open client of one server; use as ``async with SGLangClient(url) as client``.

    base_url: http(s), may hold a path prefix; api_key is sent as a bearer token and nowhere else.
    max_connections bounds requests in flight; control calls have their own few connections, so that an abort
    never queues behind what it aborts. Raises ValueError for an address or key that cannot be one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        max_connections: int = 256,
        connect_timeout_s: float = 10.0,
        max_body_bytes: int = _BODY_CAP,
        worker_header: str = WORKER_HEADER,
    ) -> None:
        url = URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"{base_url!r}: an address such as http://127.0.0.1:30000 is wanted")
        if url.user or url.password:
            raise ValueError("keys do not belong in an address: give the key as api_key")
        self.base_url = str(url).rstrip("/")
        self._secret = Secret(api_key)
        self._max_body = max_body_bytes
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self.worker_header = worker_header
        self.workers: set[str] = set()  # names of those that have answered, where a router says who did
        self._slots = asyncio.Semaphore(max_connections)
        self._generate_url = self._url("/generate")
        self._load: aiohttp.ClientSession | None = None
        self._anew: aiohttp.ClientSession | None = (
            None  # for what a kept connection lost: a new one each time
        )
        self._control: aiohttp.ClientSession | None = None
        self._poster: Poster | None = None
        self._again: dict[str, str] = {}  # rids of what was sent a second time, until it has its answer

    def __repr__(self) -> str:
        return f"SGLangClient({self.base_url!r}, api_key={self._secret!r})"

    @property
    def has_key(self) -> bool:
        """Whether an API key is sent along."""
        return bool(self._secret.header())

    async def __aenter__(self) -> Self:
        self._load = self._session(Connector(limit=0, keepalive_timeout=_KEEPALIVE_S))
        self._poster = poster_for(self._load, self._generate_url, self._timeout)
        self._anew = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        self._control = self._session(Connector(limit=_CONTROL_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for session in (self._load, self._anew, self._control):
            if session is not None:
                await session.close()

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            headers={"Content-Type": "application/json", **self._secret.header()},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
        )

    def _url(self, path: str) -> URL:
        return URL(self.base_url + path)

    async def generate(self, request: GenerateRequest) -> tuple[Answer, ...]:
        """Sends one request and waits for all of it; one Answer per prompt, in their order.

        Raises ValueError for a request that makes no sense. Cancelling closes the connection; SGLang may go
        on with the request for a long time all the same, as after TIMED_OUT and DISCONNECTED: ``abort`` it.
        """
        if self._load is None or self._anew is None:
            raise RuntimeError("the client is not open: use it as `async with SGLangClient(url) as client`")
        body = encode_generate(request)
        exchange = _Exchange(request)
        try:
            async with asyncio.timeout(request.timeout_s):
                async with self._slots:
                    exchange.sent_s = time.monotonic()
                    answers = await self._once_more_if_reset((self._load, self._anew), body, exchange)
        except TimeoutError:
            answers = exchange.failed(Outcome.TIMED_OUT, f"no end after {request.timeout_s:g} s")
        for answer, rid in zip(answers, request.rids, strict=False):
            answer.rid = rid
            if answer.outcome.settled:
                self._again.pop(rid, None)
            answer.sent_s = exchange.sent_s
            answer.worker = exchange.worker
            if not answer.ok:
                answer.detail = self._secret.redact(answer.detail)
            if answer.text:
                answer.text = self._secret.redact(answer.text)
        return answers

    async def _once_more_if_reset(
        self, sessions: Sequence[aiohttp.ClientSession], body: bytes, exchange: _Exchange
    ) -> tuple[Answer, ...]:
        for session in sessions:
            if session.closed:  # the run ended meanwhile
                return exchange.failed(Outcome.DISCONNECTED, "the client was closed before this was sent")
            try:
                return await self._send(session, body, exchange)
            except TooLarge as error:
                return exchange.failed(Outcome.MALFORMED, str(error))
            except CONNECTION_ERRORS as error:
                if session is not sessions[-1] and exchange.status is None and lost_on_reuse(error):
                    body = await self._under_other_rids(exchange)
                    continue
                return exchange.failed(outcome_of(error), words_for(error))
        raise AssertionError("unreachable: the second attempt returns")

    async def _under_other_rids(self, exchange: _Exchange) -> bytes:
        """The body to send again. The server may have read the first one, and of two requests with one rid
        SGLang mixes the output: the first is taken back, and the second has rids of its own.
        """
        first = exchange.request
        for rid in first.rids:
            await self.abort(rid)
        exchange.request = dataclasses.replace(first, rids=tuple(f"{rid}{_AGAIN}" for rid in first.rids))
        self._again.update(zip(first.rids, exchange.request.rids, strict=True))
        return encode_generate(exchange.request)

    async def _send(
        self, session: aiohttp.ClientSession, body: bytes, exchange: _Exchange
    ) -> tuple[Answer, ...]:
        if self._poster is not None and session is self._load and len(body) <= LONGEST:
            return await self._receive(await self._poster.post(body), exchange)
        data = io.BytesIO(body) if len(body) > LONGEST else body
        async with session.post(self._generate_url, data=data, allow_redirects=False) as response:
            return await self._receive(response, exchange)

    async def _receive(
        self, response: aiohttp.ClientResponse | Posted, exchange: _Exchange
    ) -> tuple[Answer, ...]:
        request = exchange.request
        async with response:
            exchange.status = response.status
            exchange.worker = worker_name(response.headers.get(self.worker_header, ""))
            if exchange.worker and len(self.workers) < _MOST_WORKERS:
                self.workers.add(exchange.worker)
            if request.stream and response.status == 200 and response.content_type != "application/json":
                return await self._stream(response, exchange)
            whole = await read_body(response, self._max_body)
            exchange.finished_s = time.monotonic()
            if len(whole) > _THREAD_FROM:
                answers = await asyncio.to_thread(
                    decode_generate, whole, request, http_status=response.status
                )
            else:
                answers = decode_generate(whole, request, http_status=response.status)
            for answer in answers:
                answer.finished_s = exchange.finished_s
            return answers

    async def _stream(
        self, response: aiohttp.ClientResponse | Posted, exchange: _Exchange
    ) -> tuple[Answer, ...]:
        decoder = StreamDecoder(exchange.request, max_line_bytes=self._max_body)
        exchange.decoder = decoder
        async for data in response.content.iter_any():
            decoder.feed(data, time.monotonic())
            if decoder.done:
                break
        exchange.finished_s = time.monotonic()
        if decoder.clean:  # let the body end, so that the connection can be used again
            try:
                async with asyncio.timeout(_AFTER_DONE_S):
                    await response.content.readany()
            except CONNECTION_ERRORS:
                response.close()  # all that was asked has come: only the connection is lost
        if decoder.pending_bytes > _THREAD_FROM:
            answers = await asyncio.to_thread(decoder.finish, exchange.finished_s)
        else:
            answers = decoder.finish(exchange.finished_s)
        for answer in answers:
            answer.http_status = exchange.status
        return answers

    async def abort(self, rid: str) -> bool:
        """Asks the server to abort ``rid`` (and every rid it is a prefix of); whether the server took it.

        SGLang answers 200 for unknown rids, too. Raises ValueError for an empty rid.
        """
        if not rid:
            raise ValueError("an empty rid would be the prefix of every request on the server")
        status, _, _ = await self._call("POST", "/abort_request", {"rid": rid})
        again = self._again.pop(rid, None)
        if again is not None:
            status, _, _ = await self._call("POST", "/abort_request", {"rid": again})
        return status == 200

    async def abort_all_of(self, rids: Iterable[str]) -> int:
        """Aborts each of these rids, and no other; returns how many the server took."""
        wanted = list(dict.fromkeys(rids))
        waiting = iter(wanted)
        taken = 0

        async def worker() -> None:
            nonlocal taken
            for rid in waiting:
                ok = await self.abort(rid)  # not inside the sum, which would be read before the wait
                taken += ok

        await asyncio.gather(*(worker() for _ in range(min(_CONTROL_CONNECTIONS, len(wanted)))))
        return taken

    async def flush(self, timeout_s: float) -> tuple[bool, str]:
        """Empties the whole cache as soon as the server is idle, within ``timeout_s``; success and words.

        Asked again and again: SGLang's own wait (``?timeout=``) looks only when a message comes, or after a
        second without any, so that under steady load it sees no idle moment of the many there are.
        """
        until = time.monotonic() + timeout_s
        while True:
            flushed, words = await self._done("POST", "/flush_cache", None, _CONTROL_TIMEOUT_S)
            if flushed or time.monotonic() + _ASK_AGAIN_S > until:
                return flushed, words
            await asyncio.sleep(_ASK_AGAIN_S)

    async def pause(self, mode: str) -> tuple[bool, str]:
        """Pauses generation: ``abort``, ``retract`` or ``in_place``; success and the server's words."""
        return await self._done("POST", "/pause_generation", {"mode": mode}, 4 * _CONTROL_TIMEOUT_S)

    async def continue_(self) -> tuple[bool, str]:
        """Ends a pause; success and the server's words."""
        return await self._done("POST", "/continue_generation", {}, _CONTROL_TIMEOUT_S)

    async def reload(self, model_path: str, timeout_s: float) -> tuple[bool, str]:
        """Loads the weights anew from a path of the server's, which empties the cache; success and words."""
        body = {"model_path": model_path, "flush_cache": True}
        return await self._done("POST", "/update_weights_from_disk", body, timeout_s)

    async def healthy(self) -> bool:
        """Whether /health says so; SGLang answers it by generating, so it takes a second."""
        status, _, _ = await self._call("GET", "/health", timeout_s=30.0)
        return status == 200

    async def get_json(self, path: str) -> tuple[int | None, object | None, str]:
        """GET ``path``: status (None without an answer), parsed body (None if not JSON), what was wrong."""
        status, body, detail = await self._call("GET", path)
        if status is None:
            return None, None, detail
        try:
            value = self._secret.scrub(orjson.loads(body))
        except orjson.JSONDecodeError:
            return status, None, f"HTTP {status}, not JSON: {self._secret.redact(refusal(body))}"
        return status, value, "" if status == 200 else f"HTTP {status}: {self._secret.redact(refusal(body))}"

    async def post_json(self, path: str, body: Mapping[str, object]) -> tuple[int | None, object | None]:
        """POST ``path``: status (None without an answer) and parsed body (None if it is not JSON)."""
        status, answer, _ = await self._call("POST", path, body)
        try:
            return status, self._secret.scrub(orjson.loads(answer))
        except orjson.JSONDecodeError:
            return status, None

    async def metrics_text(self) -> str | None:
        """The server's own /metrics page; None if it has none (SGLang needs --enable-metrics)."""
        status, body, _ = await self._call("GET", "/metrics")
        return self._secret.redact(body.decode(errors="replace")) if status == 200 else None

    async def _done(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout_s: float
    ) -> tuple[bool, str]:
        status, answer, detail = await self._call(method, path, body, timeout_s)
        if status is None:
            return False, detail
        return status == 200, self._secret.redact(f"HTTP {status}: {refusal(answer)}")

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        timeout_s: float = _CONTROL_TIMEOUT_S,
    ) -> tuple[int | None, bytes, str]:
        """One control call: status and body, or None and why there is no answer."""
        if self._control is None or self._anew is None:
            raise RuntimeError("the client is not open: use it as `async with SGLangClient(url) as client`")
        data = None if body is None else orjson.dumps(body)
        for session in (self._control, self._anew):
            try:
                async with (
                    asyncio.timeout(timeout_s),
                    session.request(method, self._url(path), data=data, allow_redirects=False) as response,
                ):
                    return response.status, await read_body(response, self._max_body), ""
            except TooLarge as error:
                return None, b"", str(error)
            except CONNECTION_ERRORS as error:  # TimeoutError is among them: it is an OSError
                if type(error) is TimeoutError:
                    return None, b"", f"no answer from {path.partition('?')[0]} after {timeout_s:g} s"
                if session is self._control and lost_on_reuse(error):
                    continue
                return None, b"", self._secret.redact(words_for(error))
        raise AssertionError("unreachable: the second attempt returns")


class _Exchange:
    """One request on its way: what is known of it if it ends early."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.status: int | None = None
        self.worker = ""
        self.sent_s = time.monotonic()
        self.finished_s = 0.0
        self.decoder: StreamDecoder | None = None

    def failed(self, outcome: Outcome, detail: str) -> tuple[Answer, ...]:
        """Answers that say so, with what a stream had brought by then."""
        now = time.monotonic()
        if self.decoder is not None:
            answers = self.decoder.finish(now, outcome, detail)
        else:
            answers = tuple(
                Answer(rid=rid, outcome=outcome, detail=detail, finished_s=now) for rid in self.request.rids
            )
        for answer in answers:
            answer.http_status = self.status
        return answers


def worker_name(said: str) -> str:
    """A short name for whoever a router says has answered; the same for the same words, empty for none.

    Long or odd ones become a digest: names go into streams, which hold no slash, and into metrics.
    """
    if not said or re.fullmatch(r"[A-Za-z0-9._:-]{1,24}", said):
        return said
    return hashlib.blake2b(said.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
