"""A small server in good order, whose answers are spoiled on purpose; it can go away and come back.

Computes nothing: its logprobs depend on place and token alone, so that warm and cold agree to the last bit
and every alarm a run raises on it is a false one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from soak.sglang.exchange import GenerateRequest
from tests.sglang import honest
from tests.sglang.misbehaving import Behaviour, Seen, serving, streamed
from tests.sglang.small import Small

Spoil = Callable[[GenerateRequest, int], Behaviour | None]


def never_spoiled(_: GenerateRequest, __: int) -> Behaviour | None:
    return None


@dataclass
class Server:
    """small: the cache behind it. spoil: how the n-th request is answered instead of well, None for well.

    tokens: counted from this start on, as SGLang does; metrics: whether it tells them at all.
    """

    small: Small = field(default_factory=Small)
    spoil: Spoil = never_spoiled
    metrics: bool = True
    startup_s: float = 1.5
    delay_s: float = 0.0
    shift: float = 0.0  # nats that every logprob is off: another model
    port: int = 0
    seen: Seen = field(default_factory=Seen)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: int = 0
    running: int = 0
    requests: int = 0
    rids: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)  # rids that run on until they are aborted by name
    starts: int = 0
    url: str = ""

    def restart(self, **info: Any) -> None:
        """As after a start: nothing cached, nothing counted, other seconds."""
        self.starts += 1
        self.tokens, self.running = 0, 0
        self.rids.clear()
        self.small = Small(info={"startup_time": {"scheduler_e2e": self.startup_s + self.starts}, **info})

    async def generate(self, request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        self.requests += 1
        self.running += 1
        self.rids.update(wanted.rids)
        try:
            if wanted.rids[0].startswith("soak-preflight"):
                return await self.small.generate(request, wanted)
            bad = self.spoil(wanted, self.requests)
            if bad is not None:
                return await bad(request, wanted)
            return await self.well(request, wanted)
        finally:
            self.running -= 1
            self.rids.difference_update(wanted.rids)

    async def well(self, request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        await asyncio.sleep(self.delay_s)
        cached = [self._resume(wanted, i) for i in range(len(wanted.prompts))]
        if wanted.stream:
            events = honest.events(wanted)
            for event in events:
                _set(event, cached[event.get("index", 0)])
            return await streamed(request, honest.sse(events), b"data: [DONE]\n\n")
        answers = [_set(honest.answer(wanted, i), cached[i]) for i in range(len(wanted.prompts))]
        for answer in answers:
            for entry in answer["meta_info"].get("input_token_logprobs", [])[1:] if self.shift else ():
                entry[0] -= self.shift
        return web.Response(
            body=orjson.dumps(answers if len(answers) > 1 else answers[0]), content_type="application/json"
        )

    async def never_ends(self, _: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        """Runs on, whether its client is there or not, until its rids are aborted by their whole names."""
        self.stuck.update(wanted.rids)
        while self.stuck & set(wanted.rids):
            await asyncio.sleep(0.01)
            self.stuck.difference_update(self.seen.aborted)
        reason = {"type": "abort", "message": "Aborted"}
        answers = [honest.answer(wanted, i, 0) for i in range(len(wanted.rids))]
        for answer in answers:
            answer["meta_info"]["finish_reason"] = reason
        return web.json_response(answers if len(answers) > 1 else answers[0])

    @property
    def left(self) -> set[str]:
        """Rids that run on."""
        return self.stuck - set(self.seen.aborted)

    def _resume(self, wanted: GenerateRequest, i: int) -> int:
        prompt = [int(t) for t in wanted.prompts[i] if not isinstance(t, str)]
        self.tokens += len(prompt)
        return self.small._resume(prompt, wanted)

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self.metrics:
            return web.Response(status=404)
        return web.Response(
            text=f"sglang:num_running_reqs {self.running}\nsglang:prompt_tokens_total {self.tokens}\n"
        )

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """One life of the server, the later ones on the port of the first."""
        if not self.starts:
            self.starts = 1
            self.small.info.setdefault("startup_time", {"scheduler_e2e": self.startup_s})

        async def info(_: web.Request) -> web.Response:
            return web.json_response(self.small.server_info())

        routes = {
            **self.small.routes(),
            "/server_info": info,
            "/health": {},
            "/v1/loads": {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0}]},
            "/metrics": self._metrics,
        }
        async with serving(self.generate, seen=self.seen, routes=routes, port=self.port) as url:
            self.url, self.port = url, int(url.rpartition(":")[2])
            yield url


def _set(answer: dict[str, Any], cached: int) -> dict[str, Any]:
    answer["meta_info"]["cached_tokens"] = cached
    answer["meta_info"]["cached_tokens_details"] = {"device": cached, "host": 0}
    return answer


def every(n: int, behaviour: Behaviour) -> Spoil:
    """Each n-th request so, from the n-th on."""
    turn = itertools.count(1)
    return lambda wanted, number: behaviour if next(turn) % n == 0 else None


def load_only(spoil: Spoil) -> Spoil:
    """Load alone, which is streamed here; what probes ask is not."""
    return lambda wanted, number: spoil(wanted, number) if wanted.stream else None
