"""Serves ``/metrics`` to Prometheus, and ``/healthz`` to whoever asks whether soak is alive.

Read-only itself: routes that change something are handed in, and guard themselves.

Rendering runs in a thread: thousands of series take tens of milliseconds,
which the load's schedule would feel.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


class MetricsUnavailable(Exception):
    """The metrics address cannot be served; the message names the key to change."""


class Exposition:
    """An HTTP server over one registry. ``port`` 0 takes a free one; ``url`` says which after ``start``."""

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str = "127.0.0.1",
        port: int = 9464,
        routes: Iterable[web.AbstractRouteDef] = (),
    ) -> None:
        self._registry, self._routes = registry, tuple(routes)
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._bound: tuple[str, int] | None = None

    @property
    def url(self) -> str:
        """Address of the metrics page. Raises RuntimeError before ``start``."""
        if self._bound is None:
            raise RuntimeError("the metrics server has not been started")
        host, port = self._bound
        return f"http://{f'[{host}]' if _is_v6(host) else host}:{port}/metrics"

    @property
    def port(self) -> int:
        """The port it is served on. Raises RuntimeError before ``start``."""
        if self._bound is None:
            raise RuntimeError("the metrics server has not been started")
        return self._bound[1]

    async def start(self) -> None:
        """Bind and serve. Raises MetricsUnavailable when the address is taken or not ours."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_routes(self._routes)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise MetricsUnavailable(self._why(error)) from error
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self._bound = (host, port)

    async def stop(self) -> None:
        """Stop serving; does nothing when not started."""
        runner, self._runner, self._bound = self._runner, None, None
        if runner is not None:
            await runner.cleanup()

    def _why(self, error: OSError) -> str:
        place = f"{self._host}:{self._port}"
        if error.errno == errno.EADDRINUSE:
            return (
                f"metrics.port: {place} is taken by another program; choose another port, "
                "0 for any free one, or null to serve no metrics"
            )
        if error.errno == errno.EACCES:
            return f"metrics.port: {place} may not be opened by this user; choose a port from 1024 on"
        return f"metrics.host: {place} cannot be opened: {error.strerror or error}"

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.to_thread(encode, self._registry)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")


def _is_v6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
