"""One run's traffic on one server: rids of a fixed width, what is in flight, and how to take all of it back.

Every request of a run, load or probe, goes through its session, so that stopping leaves nothing on the
server. The server aborts by prefix of the rid; fixed width makes a rid the prefix of no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, TokenIds

_ABORTS_AT_ONCE = 64  # few would wait for the network: each abort is one short request
_TELL_S = 1.0  # how long a lost request's answer waits for the server to be told
_LONGEST_S = 60.0  # how long aborts go on past their time while the server still takes them


def rid_of(session: str, serial: int) -> str:
    """The rid of that number: soak-<run>-<process>-<ten digits>."""
    return f"soak-{session}-{serial:010d}"


@dataclass(frozen=True, slots=True)
class Ours:
    """Prompts of a session while a server was looked at. in_flight: at most so many at once; sent: since the
    session began, until the look was over; answered: of those, before it began.
    """

    in_flight: int = 0
    sent: int = 0
    answered: int = 0


NOTHING = Ours()


class Session:
    """Sends requests under rids of this run and remembers which of them the server may still hold.

    on_sending: told, before a request is sent, of the lowest and the highest number of a rid that the server
    may hold from then on. token: what names this process, drawn if not given. ranks: data-parallel ones of
    the server; with several, each is a worker of its own, and ``rank_of`` says which one an index is sent to.
    on_paused: told of each pause when it is over: mode, begin and end in seconds of ``time.monotonic()``.
    """

    def __init__(
        self,
        client: SGLangClient,
        run_id: str,
        on_sending: Callable[[int, int], None] = lambda _low, _high: None,
        *,
        token: str | None = None,
        ranks: int = 1,
    ) -> None:
        self.client = client
        self.ranks = ranks
        self._on_sending = on_sending
        # A run may be repeated, or shared out to several processes, under one run id: their requests and
        # namespaces must never meet.
        self.run_id = f"{run_id}-{token or secrets.token_hex(4)}"
        self.prompts_in_flight = 0
        self._most_in_flight = self._sent = self._answered = 0  # prompts
        self._serial = 0
        self._outstanding: set[str] = set()
        self._oldest: list[str] = []  # a heap of what was sent; what is settled goes when met
        self._giving_back: set[asyncio.Task[None]] = set()
        self._namespaces = 0
        self._paused = False
        self._pause: tuple[str, float] | None = None  # mode, since when
        self.on_paused: Callable[[str, float, float], None] = lambda _mode, _began_s, _ended_s: None
        self._pausing = asyncio.Lock()

    def rid(self) -> str:
        """The next rid."""
        self._serial += 1
        return rid_of(self.run_id, self._serial)

    def looking(self) -> Callable[[], Ours]:
        """Call when a look at the server begins, and what it returns when that ends. One look at a time."""
        self._most_in_flight, answered = self.prompts_in_flight, self._answered
        return lambda: Ours(self._most_in_flight, self._sent, answered)

    def rank_of(self, index: int) -> int | None:
        """The data-parallel rank for all that an index of the plan leads to; None where there is one."""
        return index % self.ranks if self.ranks > 1 else None

    def namespace(self) -> str:
        """A fresh ``extra_key``, never used before by this process or any other."""
        self._namespaces += 1
        return f"soak-{self.run_id}-ns-{self._namespaces:010d}"

    async def generate(
        self, prompts: Iterable[TokenIds | str], *, rids: tuple[str, ...] = (), **fields: object
    ) -> tuple[Answer, ...]:
        """Send one request; ``fields`` are GenerateRequest's. One answer per prompt, never an error.

        rids: from ``rid``, for a caller that will want to abort them; by default new ones.
        """
        wanted = tuple(prompts)
        rids = rids or tuple(self.rid() for _ in wanted)
        request = GenerateRequest(prompts=wanted, rids=rids, **fields)  # type: ignore[arg-type]
        self._remember(rids)
        self.prompts_in_flight += len(rids)
        self._sent += len(rids)
        self._most_in_flight = max(self._most_in_flight, self.prompts_in_flight)
        try:
            answers = await self.client.generate(request)
        finally:
            self.prompts_in_flight -= len(rids)
        if self.ranks > 1:
            for answer in answers:
                if answer.dp_rank is not None:
                    answer.worker = "-".join(filter(None, (answer.worker, f"dp{answer.dp_rank}")))
        # a request that was cancelled or lost may still run on the server: its rids stay until aborted
        lost = []
        for answer in answers:
            if answer.outcome.settled:
                self._answered += 1
                self._outstanding.discard(answer.rid)
            elif answer.rid in self._outstanding:
                lost.append(answer.rid)
        if lost:
            await self._give_back(lost)
        return answers

    def _remember(self, rids: tuple[str, ...]) -> None:
        self._outstanding.update(rids)
        for rid in rids:
            # of a fixed width and one beginning, they sort by their numbers
            heapq.heappush(self._oldest, rid)
        while self._oldest[0] not in self._outstanding:
            heapq.heappop(self._oldest)
        self._on_sending(int(self._oldest[0][-10:]), self._serial)

    async def abort(self, rids: Iterable[str]) -> None:
        """Ask the server to abort requests of this session, which answer for themselves."""
        await self._tell(rids, lambda _rid: None)

    async def abandon(self, rids: Iterable[str]) -> None:
        """Abort requests whose answers nobody waits for any more, and forget those the server was told of."""
        await self._abort(list(rids))

    @contextlib.asynccontextmanager
    async def held(self, mode: str) -> AsyncIterator[bool]:
        """The server paused for the length of the block, one block at a time; whether it really was.

        Whatever happens inside, it goes on; should it not hear of that, ``abort_outstanding`` tells it again.
        """
        async with self._pausing:
            self._paused = True
            try:
                paused, _ = await self.client.pause(mode)
                self._pause = (mode, time.monotonic()) if paused else None
                yield paused
            finally:
                await asyncio.shield(self.let_go_on())

    async def let_go_on(self) -> None:
        """End a pause of this session, if there is one; ``on_paused`` is then told of it."""
        if self._paused:
            gone_on, _ = await self.client.continue_()
            self._paused = not gone_on
            if gone_on and self._pause is not None:
                (mode, began_s), self._pause = self._pause, None
                self.on_paused(mode, began_s, time.monotonic())

    def tenant(self, number: int) -> str:
        """The namespace of a tenant, the same for the whole session and nobody else's."""
        return f"soak-{self.run_id}-tenant-{number:03d}"

    async def _give_back(self, rids: list[str]) -> None:
        """Abort lost requests; a server that does not answer holds nobody up for long."""
        task = asyncio.create_task(self._abort(rids))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)
        await asyncio.wait({task}, timeout=_TELL_S)

    async def _abort(self, rids: list[str]) -> None:
        await self._tell(rids, self._outstanding.discard)

    async def _tell(self, rids: Iterable[str], taken: Callable[[str], None]) -> None:
        """Abort each rid, several at a time; ``taken`` is told of those that the server took."""
        wanted = list(rids)
        waiting = iter(wanted)

        async def worker() -> None:
            for rid in waiting:
                if await self.client.abort(rid):
                    taken(rid)

        await asyncio.gather(*(worker() for _ in range(min(_ABORTS_AT_ONCE, len(wanted)))))

    async def abort_outstanding(self, within_s: float = 1.0) -> int:
        """Abort everything that may still run; returns how many aborts could not be delivered in time.

        Thousands take longer than that, since SGLang heeds whole rids alone, one a request: they go on for as
        long as the server takes some every ``within_s``, up to a minute. A pause
        that was not ended ends first.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(within_s, _TELL_S)):
                await self.let_go_on()
        if self._outstanding:
            task = asyncio.create_task(self._abort(sorted(self._outstanding)))
            left, deadline = len(self._outstanding) + 1, asyncio.get_running_loop().time() + _LONGEST_S
            while not task.done() and len(self._outstanding) < left:
                left = len(self._outstanding)
                late = asyncio.get_running_loop().time() - deadline
                if late >= 0:
                    break
                await asyncio.wait({task}, timeout=min(within_s, -late))
            self._giving_back.add(task)
        for task in list(self._giving_back):
            task.cancel()
        await asyncio.gather(*self._giving_back, return_exceptions=True)
        self._giving_back.clear()
        return len(self._outstanding)
