"""Replays on a server by a run's own rules: allowed load, a free server, budgets, a stop that leaves nothing.

It decides no reading: it makes sure that the server may be used and is the one to compare with, and hands a
session to whoever replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from soak.config import Config, ConfigError
from soak.drive.brake import Brake, StopLimits
from soak.incident.about import About
from soak.incident.cuts import most_at_once
from soak.incident.judge import Judged, Original, Reading, judge, original_of
from soak.incident.minimise import Minimised, Minimiser
from soak.incident.player import Manner
from soak.incident.readings import Readings
from soak.incident.replay import Repeat, replay_once
from soak.incident.salt import salt
from soak.incident.trace import Trace
from soak.run.connecting import Interrupted, client_for, refuse_if_busy, unless_stopped
from soak.run.continuity import Continuity
from soak.run.watch import ServerWatch
from soak.sglang.allowance import Allowance
from soak.sglang.fingerprint import Fingerprint
from soak.sglang.preflight import Target, TargetUnusable, examine, server_now
from soak.sglang.session import Session

T = TypeVar("T")

_KILL_S = 1.0
_POLL_S = 0.05
_LOOK_S = 0.25
_MOST_VOID = 3  # replays in a row during which the server went away


class NotComparable(TargetUnusable):
    """The server is not the one that the incident was seen on; the message says how."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to replay. first_salt: the number of the first repeat's ids; 0 sends the recorded ones.

    anyway: go on where the server is another one.
    """

    repeat: int
    manner: Manner
    first_salt: int
    anyway: bool = False


@dataclass(slots=True)
class Replayed:
    """What came of it. repeats and judged side by side; differences: how the server is another one.

    held_s: seconds for which budgets or the server's own queue held requests back. minimised: if asked for.
    """

    original: Original
    differences: list[str] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    judged: tuple[Judged, ...] = ()
    held_s: float = 0.0
    minimised: Minimised | None = None

    def count(self, reading: Reading) -> int:
        """How many repeats came to that."""
        return sum(judged.reading is reading for judged in self.judged)


class Replaying:
    """One command's replays of one trace. Raises ConfigError for what the budget cannot hold."""

    def __init__(
        self, config: Config, trace: Trace, about: About, wanted: Wanted, say: Callable[[str], None]
    ) -> None:
        self._config, self._trace, self._about, self._wanted = config, trace, about, wanted
        self._say = say
        self._salts = 0
        self.result = Replayed(original_of(trace.case))
        most, allowed = most_at_once(trace), config.budget.in_flight
        if allowed is not None and most > allowed:
            raise ConfigError(
                f"budget.in_flight: given {allowed}; the trace has up to {most} prompts in flight at once, "
                "and fewer would be another trace: raise it, or take a shorter --window"
            )

    async def replay(self, stop: asyncio.Event) -> Replayed:
        """All repeats. Raises TargetUnusable, NotComparable, Interrupted, ConfigError."""

        async def repeats(once: Callable[[Trace, bool], Awaitable[Repeat]]) -> None:
            for number in range(self._wanted.repeat):
                self._say(f"replay {number + 1} of {self._wanted.repeat}: {len(self._trace.sent)} prompts")
                self.result.repeats.append(await once(self._trace, True))
                self.result.judged = judge(
                    self.result.original, [repeat.measured for repeat in self.result.repeats]
                )
                self._say(self.result.judged[-1].words)

        await self._work(repeats, stop)
        return self.result

    async def minimise(self, stop: asyncio.Event, readings: Readings, budget_s: float) -> Replayed:
        """Shrink the trace. Raises as ``replay``, and NotReproducedError, ReadingsError."""

        async def shrink(once: Callable[[Trace, bool], Awaitable[Repeat]]) -> None:
            minimiser = Minimiser(once, self.result.original, readings, budget_s=budget_s, say=self._say)
            self.result.minimised = await minimiser.run(self._trace)

        await self._work(shrink, stop)
        return self.result

    async def _work(
        self,
        work: Callable[[Callable[[Trace, bool], Awaitable[Repeat]]], Coroutine[Any, Any, None]],
        stop: asyncio.Event,
    ) -> None:
        async with self._on_server(stop) as once:
            await self._until_done(work(once), stop)

    @asynccontextmanager
    async def _on_server(
        self, stop: asyncio.Event
    ) -> AsyncIterator[Callable[[Trace, bool], Awaitable[Repeat]]]:
        config = self._config
        ordinary = self._ordinary()
        async with client_for(config) as client:
            target = await unless_stopped(examine(client), stop)
            refuse_if_busy(config, target)
            self._compare(target)
            session = Session(client, self._about.run_id or "replay")
            brake = Brake(StopLimits(config.stop.queue, config.stop.token_usage, config.stop.ttft))
            allowance = Allowance(config.budget.tokens_per_second)
            continuity = Continuity(
                lambda: server_now(client),
                target.now,
                brake,
                on_restart=lambda: None,  # each replay writes its own prefixes
                settle=lambda _seen, _lost: None,
                say=self._say,
                beside=target.beside,
            )
            self._watch = ServerWatch(session, brake, config.stop.lost_after, continuity)

            async def gate(tokens: int) -> None:
                while brake.reason is not None or not allowance.take(tokens):
                    self.result.held_s += _POLL_S
                    await asyncio.sleep(_POLL_S)

            async def once(trace: Trace, noise: bool) -> Repeat:
                number = self._wanted.first_salt + self._salts if self._wanted.first_salt else 0
                self._salts += 1
                return await replay_once(
                    session, trace, salt(number, ordinary), self._wanted.manner, gate, noise=noise
                )

            async def on_one_server(trace: Trace, noise: bool) -> Repeat:
                for _ in range(_MOST_VOID):
                    while not await continuity.same_since(continuity.epoch):  # noqa: ASYNC110 - it is asked
                        await asyncio.sleep(_LOOK_S)  # whoever watches says so when it is lost, or another
                    epoch = continuity.epoch
                    repeat = await once(trace, noise)
                    if await continuity.same_since(epoch):
                        return repeat
                    self._say("the server went away, or was started anew, meanwhile: that replay is void")
                raise TargetUnusable(
                    f"{target.url} went away, or was started anew, in each of {_MOST_VOID} replays: they "
                    "say nothing. Look at its log: what the trace sends may be what ends it"
                )

            try:
                yield on_one_server
            finally:
                left = await session.abort_outstanding(_KILL_S)
                if left:
                    self._say(f"{left} aborts could not be delivered: the server may still run them")

    def _ordinary(self) -> tuple[int, int]:
        try:
            return self._about.ordinary_ids()
        except ValueError as error:
            raise ConfigError(f"the incident's {error}") from error

    def _compare(self, target: Target) -> None:
        """Is this the server that the incident was seen on, as far as it matters for what it computes?"""
        was = Fingerprint(tuple(sorted(self._about.fingerprint.items())))
        self.result.differences = was.differences(target.fingerprint)
        longest = max([len(self._trace.case.ids), *(len(s.ids) + s.max_new_tokens for s in self._trace.sent)])
        if longest > target.geometry.context_len:
            raise NotComparable(
                f"{target.url} takes {target.geometry.context_len} tokens, and the trace has a prompt of "
                f"{longest}"
            )
        if self.result.differences and not self._wanted.anyway:
            lines = "\n".join(f"  {line}" for line in self.result.differences)
            raise NotComparable(
                f"{target.url} is not the server that this was seen on; what differs, then and now:\n"
                f"{lines}\nTo replay on it all the same: --anyway"
            )

    async def _until_done(self, work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
        """Until the work is done, the server is lost or somebody stops it."""
        task = asyncio.create_task(work)
        lost = asyncio.create_task(self._watch.until_lost())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({task, lost, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            elif stopped.done():
                raise Interrupted(f"interrupted in replay {self._salts}; nothing is left on the server")
            else:
                raise TargetUnusable(f"target lost: {lost.result()}")
        finally:
            for each in (task, lost, stopped):
                each.cancel()
            await asyncio.gather(task, lost, stopped, return_exceptions=True)
