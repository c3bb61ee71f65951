"""``soak replay`` on a server that goes away: what it met across a restart is void, and nothing hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from soak.incident.judge import Reading
from soak.incident.player import Manner
from soak.run.replaying import Replayed, Replaying, Wanted
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest
from soak.sglang.preflight import TargetUnusable, examine
from tests.incident.traces import Script, about, random_ids
from tests.survival.runs import config
from tests.survival.server import Server


class Replay:
    """One on its way. said: lines for people."""

    def __init__(self, url: str, fingerprint: dict[str, Any], lost_after: str = "10s") -> None:
        script = Script()
        _, victim = script.send(random_ids(128, 1), random_ids(128, 2))
        script.rest()
        for number in range(6):
            script.send(random_ids(100, 3 + number))
            script.rest()
        loaded = config(url, stop={"lost_after": lost_after}, probe={"timeout": "5s"})
        self.said: list[str] = []
        self.stop = asyncio.Event()
        replaying = Replaying(
            loaded,
            script.ask(victim),
            about(fingerprint=fingerprint),
            Wanted(2, Manner(timeout_s=5.0), 1),
            self.said.append,
        )
        self.task: asyncio.Task[Replayed] = asyncio.create_task(replaying.replay(self.stop))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)

    def heard(self, words: str) -> bool:
        return any(words in line for line in self.said)


async def begun(server: Server, url: str, lost_after: str = "10s") -> Replay:
    async with SGLangClient(url) as client:
        fingerprint = (await examine(client)).fingerprint.as_dict()
    server.delay_s = 0.2
    replay = Replay(url, fingerprint, lost_after)
    await replay.until(lambda: server.running > 0 and replay.heard("replay 1 of 2"))
    return replay


async def test_a_replay_across_a_restart_is_void_and_made_once_more() -> None:
    server = Server()
    async with server.listening() as url:
        replay = await begun(server, url)
        server.restart()  # so quick that no request was lost
        server.delay_s = 0.01
        result = await asyncio.wait_for(replay.task, 40)
    assert replay.heard("that replay is void")
    assert [judged.reading for judged in result.judged] == [Reading.NOT_REPRODUCED] * 2
    assert len({repeat.salt for repeat in result.repeats}) == 2


async def test_a_replay_waits_for_a_server_that_comes_back() -> None:
    server = Server()
    async with server.listening() as url:
        replay = await begun(server, url)
    await replay.until(lambda: replay.heard("the server is gone"))
    server.restart()
    server.delay_s = 0.01
    async with server.listening():
        result = await asyncio.wait_for(replay.task, 40)
    assert replay.heard("the same server again")
    assert replay.heard("that replay is void")
    assert [judged.reading for judged in result.judged] == [Reading.NOT_REPRODUCED] * 2


async def test_a_server_that_stays_away_ends_a_replay_in_words() -> None:
    server = Server()
    async with server.listening() as url:
        replay = await begun(server, url, "2s")
    began = time.monotonic()
    with pytest.raises(TargetUnusable, match=r"target lost: nothing at .* has answered"):
        await asyncio.wait_for(replay.task, 40)
    assert time.monotonic() - began < 20


async def test_another_server_ends_a_replay_in_words() -> None:
    server = Server()
    async with server.listening() as url:
        replay = await begun(server, url)
        server.restart(attention_backend="other")
        with pytest.raises(TargetUnusable, match="another server answers in its place: attention_backend"):
            await asyncio.wait_for(replay.task, 40)


async def test_a_server_that_the_trace_ends_each_time_is_said() -> None:
    server = Server()

    async def dies(request: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        answer = await server.well(request, wanted)
        server.restart()
        return answer

    async with server.listening() as url:
        server.spoil = lambda wanted, n: dies if wanted.max_new_tokens else None
        replay = await begun(server, url)
        server.delay_s = 0.01
        with pytest.raises(TargetUnusable, match="in each of 3 replays"):
            await asyncio.wait_for(replay.task, 60)


async def test_a_replay_of_which_nothing_comes_back_can_be_stopped() -> None:
    """The server lives, and answers nothing that is sent to the model."""
    server = Server()
    async with server.listening() as url:
        replay = await begun(server, url)
        server.spoil = lambda wanted, n: server.never_ends
        await replay.until(lambda: bool(server.left))
        replay.stop.set()
        with pytest.raises(Exception, match="interrupted in replay"):
            await asyncio.wait_for(replay.task, 20)
        assert not server.left
