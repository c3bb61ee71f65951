"""The simulator's HTTP face: SGLang's endpoints over one engine.

Keeps the requests in flight, turns the engine's updates into answers, and starts and stops everything. The
forward passes run on the engine's thread, so the event loop stays free. Binds loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from aiohttp import web

from soak.sim import info
from soak.sim.answers import Pending, refused_late
from soak.sim.asked import Asked, Refused, RefusedLate, internal_error, read, validation_error
from soak.sim.config import SimConfig
from soak.sim.engine import Engine, EngineDead, Update
from soak.sim.text import tokenizer

JSON = "application/json"
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
OPEN_PATHS = ("/health", "/health_generate", "/metrics")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_BODY = 256 * 2**20


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=JSON)


async def _untype(request: web.Request, response: web.StreamResponse) -> None:
    """SGLang names no content type for what /flush_cache says."""
    if request.path == "/flush_cache" and response.content_type == "text/plain":
        del response.headers["Content-Type"]


def _refusal(error: Exception) -> web.Response:
    """What SGLang answers to each kind of refusal."""
    match error:
        case Refused(body=None):
            return web.Response(text=str(error), status=error.status)
        case Refused():
            return _json(error.body, error.status)
        case EngineDead():
            return _json(internal_error(f"The scheduler has died: {error}"), 500)
        case web.HTTPNotFound():
            return _json({"detail": "Not Found"}, 404)
        case _:
            return _json({"detail": "Method Not Allowed"}, 405)


class Server:
    """One engine behind HTTP. ``start`` binds and returns the URL; ``stop`` ends both."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.url = ""
        self._host, self._port = "", 0
        self._began = time.monotonic()
        self._startup_s = 0.0
        self._seq = 0
        self._pending: dict[str, Pending] = {}
        self._flushing = False
        self._engine: Engine | None = None
        self._runner: web.AppRunner | None = None

    @property
    def engine(self) -> Engine:
        """The running engine."""
        if self._engine is None:
            raise RuntimeError("the server has not been started")
        return self._engine

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start the engine and listen; returns the URL. Raises OSError if the port cannot be bound."""
        self._engine = Engine(self.config, asyncio.get_running_loop(), self._deliver, self._died)
        app = web.Application(middlewares=[self._authorise], client_max_size=MAX_BODY)
        app.on_response_prepare.append(_untype)
        routes: list[tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]] = [
            ("POST", "/generate", self._generate),
            ("POST", "/tokenize", self._tokenize),
            ("GET", "/server_info", self._server_info),
            ("GET", "/get_server_info", self._server_info),
            ("GET", "/model_info", self._model_info),
            ("GET", "/get_model_info", self._model_info),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/loads", self._loads),
            ("GET", "/health", self._health),
            ("GET", "/health_generate", self._health),
            ("*", "/flush_cache", self._flush),
            ("POST", "/abort_request", self._abort),
            ("POST", "/pause_generation", self._pause),
            ("POST", "/continue_generation", self._continue),
            ("POST", "/update_weights_from_disk", self._reload),
        ]
        if self.config.enable_metrics:
            routes.append(("GET", "/metrics", self._metrics))
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self._host, self._port = host, self._runner.addresses[0][1]
        self.url = f"http://{host}:{self._port}"
        self._engine.start()
        self._startup_s = time.monotonic() - self._began
        return self.url

    async def stop(self) -> None:
        """Close the port and stop the engine."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._engine.stop)

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            pending = self._pending.get(update.rid)
            if pending is not None:
                pending.take(update)

    def _died(self) -> None:
        """The scheduler is gone: nobody may wait for it any longer."""
        message = f"The scheduler has died: {self.engine.failure}"
        reason = {"type": "abort", "message": message, "status_code": 500, "err_type": "InternalServerError"}
        for pending in self._pending.values():
            pending.fail(reason)

    @web.middleware
    async def _authorise(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        key = self.config.api_key
        shown = request.headers.get("Authorization")
        if key is not None and request.path not in OPEN_PATHS and shown != f"Bearer {key}":
            return _json({"error": "Unauthorized"}, 401)
        try:
            return await handler(request)
        except (Refused, EngineDead, web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            return _refusal(error)

    # -- generation ------------------------------------------------------------------------------------------

    async def _body(self, request: web.Request) -> Any:
        try:
            return orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise validation_error(
                f"{{'type': 'json_invalid', 'msg': 'JSON decode error: {error}'}}"
            ) from error

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        wants_stream = isinstance(body, dict) and bool(body.get("stream"))
        try:
            asked = read(body, self.config, self._seq, time.monotonic())
            self._register(asked)
        except Refused as refused:
            if wants_stream and (refused.body is None or "error" in refused.body):
                return await self._refuse_in_stream(request, refused, body)
            raise
        self._seq += len(asked.requests)
        pending = [self._pending[r.rid] for r in asked.requests]
        try:
            self.engine.post(partial(self._queue, asked))
            if asked.stream:
                return await self._stream(request, asked, pending)
            for one in pending:
                while one.finish is None:
                    one.event.clear()
                    await one.event.wait()
            self._raise_failed(pending)
            answers = [one.answer() for one in pending]
            return _json(answers if asked.batched else answers[0])
        finally:
            for one in pending:
                self._pending.pop(one.request.rid, None)
                if one.finish is None:  # the client has gone away
                    self.engine.post(partial(self.engine.scheduler.abort, one.request.rid))

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        prompt = body.get("prompt") if isinstance(body, dict) else None
        if not self.config.tokenizer:
            raise Refused("Internal server error", 500, internal_error("The server has no tokenizer."))
        if not isinstance(prompt, str):
            raise validation_error("prompt: Input should be a valid string")
        ids = tokenizer(self.config.vocab).encode(prompt)
        return _json({"tokens": ids, "count": len(ids), "max_model_len": self.config.context_len})

    def _queue(self, asked: Asked) -> None:
        """On the engine's thread: all requests of a batched body join the queue in the same step."""
        for request in asked.requests:
            self.engine.scheduler.add(request)

    def _register(self, asked: Asked) -> None:
        if self.engine.failure is not None:
            raise EngineDead(self.engine.failure)
        taken = sorted(r.rid for r in asked.requests if r.rid in self._pending)
        if taken:
            raise Refused(f"Duplicate request ID detected: {taken[0]}")
        now = time.monotonic()
        for one in asked.requests:
            self._pending[one.rid] = Pending(one, now, self.config.vocab, text=self.config.tokenizer)

    @staticmethod
    def _raise_failed(pending: list[Pending]) -> None:
        for one in pending:
            finish = one.finish
            if finish is not None and finish.get("status_code") == 500:
                raise Refused(finish["message"], 500, internal_error(finish["message"]))

    async def _open_stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        return response

    async def _refuse_in_stream(
        self, request: web.Request, refused: Refused, body: Any
    ) -> web.StreamResponse:
        response = await self._open_stream(request)
        if refused.body is None:  # SGLang's handler has died by now: the body ends without an end
            if request.transport is not None:
                request.transport.close()
            return response
        message = str(refused)
        out: dict[str, Any] = {
            "error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
        }
        if isinstance(refused, RefusedLate):
            out = refused_late(message, body.get("rid") or uuid.uuid4().hex, time.monotonic())
        await response.write(b"data: " + orjson.dumps(out) + b"\n\ndata: [DONE]\n\n")
        return response

    async def _stream(self, request: web.Request, asked: Asked, pending: list[Pending]) -> web.StreamResponse:
        response = await self._open_stream(request)
        lock = asyncio.Lock()

        async def follow(index: int, one: Pending) -> None:
            while True:
                await one.event.wait()
                one.event.clear()
                done = one.finish is not None
                chunk = orjson.dumps(one.answer(index if asked.batched else None))
                async with lock:
                    await response.write(b"data: " + chunk + b"\n\n")
                if done:
                    return

        try:
            async with asyncio.TaskGroup() as group:
                for index, one in enumerate(pending):
                    group.create_task(follow(index, one))
            await response.write(b"data: [DONE]\n\n")
        except* ConnectionResetError:
            pass  # the client has gone away: the caller aborts what is unfinished
        return response

    # -- control ---------------------------------------------------------------------------------------------

    async def _flush(self, request: web.Request) -> web.Response:
        try:
            timeout = float(request.query.get("timeout", "0"))
        except ValueError as error:
            raise validation_error("timeout: Input should be a valid number") from error
        if timeout < 0:
            raise validation_error("timeout: Input should be greater than or equal to 0")
        if self._flushing:
            return web.Response(text="Another flush_cache is already in progress.", status=400)
        self._flushing = True
        try:
            if await self._until(self.engine.scheduler.flush, timeout):
                return web.Response(text=FLUSHED)
            failed = "Timed out waiting for idle state." if timeout else "Flush cache failed.\n"
            return web.Response(text=failed, status=400)
        finally:
            self._flushing = False

    async def _until(self, attempt: Callable[[], bool], timeout_s: float) -> bool:
        """Try ``attempt`` between steps until it succeeds; False once ``timeout_s`` has passed."""
        deadline = time.monotonic() + timeout_s
        done = await self.engine.call(attempt)
        while not done and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            done = await self.engine.call(attempt)
        return done

    async def _abort(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if not isinstance(body, dict):
            raise validation_error("Input should be a valid dictionary")
        rid, everything = body.get("rid") or "", bool(body.get("abort_all", False))
        # the tokenizer manager knows exact rids; only the scheduler behind it matches by prefix
        if everything or rid in self._pending:
            self.engine.post(lambda: self.engine.scheduler.abort(rid, everything))
        return web.Response()

    async def _pause(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        mode = body.get("mode", "abort") if isinstance(body, dict) else None
        if mode not in ("abort", "retract", "in_place"):
            raise validation_error("mode: Input should be 'abort', 'retract' or 'in_place'")
        scheduler = self.engine.scheduler
        if mode == "abort":
            await self.engine.call(lambda: scheduler.abort("", True))
            await self._until(lambda: scheduler.idle, math.inf)
        await self.engine.call(lambda: scheduler.pause(mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        if await request.read():
            await self._body(request)
        await self.engine.call(self.engine.scheduler.resume)
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def _reload(self, request: web.Request) -> web.Response:
        """The weights are drawn, not read: the same path gives the same ones, and an empty cache.

        As SGLang does, it waits for what is under way, unless the server is paused.
        """
        body = await self._body(request)
        if not isinstance(body, dict) or not isinstance(body.get("model_path"), str):
            raise validation_error("model_path: Field required")
        if body["model_path"] != self.config.model_path:
            words = f"Failed to get model weights from {body['model_path']}."
            return _json({"success": False, "message": words, "num_paused_requests": 0}, 400)
        scheduler = self.engine.scheduler
        await self._until(lambda: scheduler.idle or scheduler.paused, math.inf)
        if body.get("flush_cache", True) and not await self._until(scheduler.flush, 0):
            raise Refused("Cache flush failed after updating weights", 500)
        return _json(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    # -- reports ---------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.engine.failure is not None else 200)

    async def _server_info(self, request: web.Request) -> web.Response:
        return _json(info.server_info(self.engine, self._host, self._port, self._startup_s))

    async def _model_info(self, request: web.Request) -> web.Response:
        return _json(info.model_info(self.config))

    async def _models(self, request: web.Request) -> web.Response:
        return _json(info.models(self.config))

    async def _loads(self, request: web.Request) -> web.Response:
        return _json(await self.engine.call(lambda: info.loads(self.engine)))

    async def _metrics(self, request: web.Request) -> web.Response:
        text = await self.engine.call(lambda: info.metrics(self.engine))
        return web.Response(body=text.encode(), headers={"Content-Type": METRICS_TYPE})


@contextlib.asynccontextmanager
async def running(config: SimConfig, port: int = 0) -> AsyncIterator[str]:
    """A simulator on loopback for the length of the block; yields its URL."""
    server = Server(config)
    url = await server.start("127.0.0.1", port)
    try:
        yield url
    finally:
        await server.stop()


def run(
    config: SimConfig,
    host: str = "127.0.0.1",
    port: int = 30000,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    ``on_ready`` gets the URL. Raises OSError if the port cannot be bound.
    """

    async def serve() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        server = Server(config)
        url = await server.start(host, port)
        try:
            if on_ready is not None:
                on_ready(url)
            await stopped.wait()
        finally:
            await server.stop()

    asyncio.run(serve())
