"""The workers' alarms APIs behind one address. It guards nothing: each worker asks for the token itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_LONGEST_BODY = 4096


class AlarmsOfShards:
    """GET /alarms of all shards, and POST /alarms/ID/ack to the one that has it. ports: of their metrics."""

    def __init__(self, ports: Callable[[], Mapping[int, int]]) -> None:
        self._ports = ports

    def routes(self) -> list[web.RouteDef]:
        """For the server that has /metrics."""
        return [web.get("/alarms", self._list), web.post("/alarms/{id}/ack", self._ack)]

    async def _ask(self, request: web.Request, port: int, body: bytes = b"") -> tuple[int, Any]:
        headers = {k: v for k in ("Authorization", "Content-Type") if (v := request.headers.get(k))}
        url = f"http://127.0.0.1:{port}{request.path}"
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.request(request.method, url, headers=headers, data=body or None) as answer,
        ):
            return answer.status, await answer.json()

    async def _list(self, request: web.Request) -> web.Response:
        rows: list[dict[str, Any]] = []
        down = []
        for shard, port in sorted(self._ports().items()):
            try:
                if not port:
                    raise aiohttp.ClientError("not there")
                status, told = await self._ask(request, port)
            except (aiohttp.ClientError, TimeoutError):
                down.append(shard)
                continue
            if status != 200:
                return web.json_response(told, status=status)
            rows += [{**row, "shard": shard} for row in told["alarms"]]
        return web.json_response({"alarms": rows, "shards_down": down})

    async def _ack(self, request: web.Request) -> web.Response:
        body = (await request.content.read(_LONGEST_BODY + 1))[: _LONGEST_BODY + 1]
        status, told = 503, {"error": "no shard is up"}
        for _, port in sorted(self._ports().items()):
            if port:
                try:
                    status, told = await self._ask(request, port, body)
                except (aiohttp.ClientError, TimeoutError):
                    status, told = 503, {"error": "a shard did not answer: ask again"}
                    continue
                if status != 404:
                    break
        return web.json_response(told, status=status)
