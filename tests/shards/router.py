"""A small router in front of simulators, as people put one in front of SGLang; it may say where it sent to.

policy: ``turns`` (one worker after the other), ``prefix`` (by the first tokens, as a cache-aware router), or
``rank`` (one data-parallel server: by ``routed_dp_rank``, which answers say).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

PREFIX = 16


class Router:
    """Forwards to these addresses. asked: how many /generate each got; ranks: as requests named them."""

    def __init__(self, urls: Sequence[str], policy: str, *, names: bool) -> None:
        self.urls, self.policy, self.names = list(urls), policy, names
        self.asked = [0] * len(self.urls)
        self.ranks: list[int | None] = []
        self._turns: Counter[str] = Counter()
        self._session: aiohttp.ClientSession | None = None

    def _chosen(self, body: dict[str, Any]) -> int:
        if self.policy == "rank":
            rank = body.pop("routed_dp_rank", None)
            self.ranks.append(rank)
            if rank is not None:
                return int(rank)
        if self.policy == "prefix":
            ids = body["input_ids"]
            first = ids[0] if isinstance(ids[0], list) else ids
            return sum(first[:PREFIX]) % len(self.urls)
        return self._next("/generate")

    def _next(self, path: str) -> int:
        """Whose turn it is for that path: several that are asked together must not fall to one for ever."""
        self._turns[path] += 1
        return self._turns[path] % len(self.urls)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        place = self._chosen(body)
        self.asked[place] += 1
        assert self._session is not None
        async with self._session.post(f"{self.urls[place]}/generate", json=body) as answer:
            headers = {"Content-Type": answer.headers["Content-Type"]}
            if self.names:
                headers["x-smg-worker-id"] = f"worker-{place}"
            whole = await answer.read()
            if self.policy == "rank":
                whole = whole.replace(b'"dp_rank":null', b'"dp_rank":%d' % place)
            return web.Response(body=whole, status=answer.status, headers=headers)

    async def to_all(self, request: web.Request) -> web.Response:
        assert self._session is not None
        body, status = await request.read(), 500
        for url in self.urls:
            async with self._session.post(f"{url}{request.path}", data=body) as answer:
                status = answer.status
        return web.Response(status=status)

    async def to_one(self, request: web.Request) -> web.Response:
        assert self._session is not None
        place = self._next(request.path) if self.policy == "turns" else 0
        async with self._session.get(f"{self.urls[place]}{request.path_qs}") as answer:
            whole = await answer.read()
            if self.policy == "rank" and request.path == "/server_info":
                whole = json.dumps({**json.loads(whole), "dp_size": len(self.urls)}).encode()
            if self.policy == "turns" and request.path == "/server_info":
                whole = json.dumps({**json.loads(whole), "startup_time": 1 + place}).encode()
            content = answer.headers["Content-Type"]
            return web.Response(body=whole, status=answer.status, headers={"Content-Type": content})


@asynccontextmanager
async def routing(
    urls: Sequence[str], policy: str = "turns", *, names: bool = True
) -> AsyncIterator[tuple[str, Router]]:
    """Its address, and the router itself."""
    router = Router(urls, policy, names=names)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/generate", router.generate)
    app.router.add_post("/{rest:.*}", router.to_all)
    app.router.add_get("/{rest:.*}", router.to_one)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    async with aiohttp.ClientSession() as session:
        router._session = session
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", router
        finally:
            await runner.cleanup()
