"""One run's traffic on one server: rids of a fixed width, what is in flight, and how to take all of it back.

Every request of a run, load or probe, goes through its session, so that stopping leaves nothing on the
server. The server aborts by prefix of the rid; fixed width makes a rid the prefix of no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Awaitable, Iterable

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, TokenIds


class Session:
    """Sends requests under rids of this run and remembers which of them the server may still hold."""

    def __init__(self, client: SGLangClient, run_id: str) -> None:
        self.client = client
        # A run may be repeated, or shared out to several processes, under one run id: their requests and
        # namespaces must never meet.
        self.run_id = f"{run_id}-{secrets.token_hex(4)}"
        self.prompts_in_flight = 0
        self._serial = 0
        self._outstanding: set[str] = set()
        self._namespaces = 0

    def rid(self) -> str:
        """The next rid: soak-<run>-<process>-<ten digits>."""
        self._serial += 1
        return f"soak-{self.run_id}-{self._serial:010d}"

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
        request = dataclasses.replace(GenerateRequest(prompts=wanted, rids=rids), **fields)  # type: ignore[arg-type]
        self._outstanding.update(rids)
        self.prompts_in_flight += len(rids)
        try:
            answers = await self.client.generate(request)
        finally:
            self.prompts_in_flight -= len(rids)
        # a request that was cancelled or lost may still run on the server: its rids stay until aborted
        for answer in answers:
            if answer.outcome.settled:
                self._outstanding.discard(answer.rid)
        lost = [a.rid for a in answers if a.rid in self._outstanding]
        if lost:
            await self._abort(lost)
        return answers

    async def abort(self, rids: Iterable[str]) -> None:
        """Ask the server to abort requests of this session, which answer for themselves."""
        for rid in rids:
            await self.client.abort(rid)

    async def abandon(self, rids: Iterable[str]) -> None:
        """Abort requests whose answers nobody waits for any more, and forget those the server was told of."""
        await self._abort(list(rids))

    def tenant(self, number: int) -> str:
        """The namespace of a tenant, the same for the whole session and nobody else's."""
        return f"soak-{self.run_id}-tenant-{number:03d}"

    async def _abort(self, rids: list[str]) -> None:
        for rid in rids:
            if await self.client.abort(rid):
                self._outstanding.discard(rid)

    async def abort_outstanding(self, within_s: float = 1.0) -> int:
        """Abort everything that may still run; returns how many aborts could not be delivered in time."""
        rids = sorted(self._outstanding)
        aborts: list[Awaitable[None]] = [self._abort([rid]) for rid in rids]
        if aborts:
            tasks = [asyncio.ensure_future(a) for a in aborts]
            _, late = await asyncio.wait(tasks, timeout=within_s)
            for task in late:
                task.cancel()
        return len(self._outstanding)
