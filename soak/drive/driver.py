"""The open-loop driver: sends every planned item at its intended time, whatever the server makes of the last.

Latency counts from the intended start. What could not be sent (brake, in-flight cap, token budget) is counted
by reason and never sent later in a pile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from soak.drive.brake import Brake
from soak.drive.observation import Observation
from soak.drive.pace import Pace
from soak.plan.item import Abort, AbortBy, Hold, Item
from soak.plan.plan import Plan
from soak.plan.strict import code_of, schema_of
from soak.sglang.allowance import Allowance
from soak.sglang.exchange import Answer, Outcome, TokenIds
from soak.sglang.session import Session

_PATIENCE_S = 2.0  # how long an item may wait for a free place before it counts as not delivered
_HUNG_UP_S = 3.0  # a request whose client is gone runs on so long before the server is told


@dataclass(frozen=True, slots=True)
class DriveLimits:
    """in_flight: load prompts at once; timeout_s: seconds a request may take."""

    in_flight: int = 256
    timeout_s: float = 120.0


class Driver:
    """Drives one shard of a plan on one session until told to stop."""

    def __init__(
        self,
        plan: Plan,
        session: Session,
        brake: Brake,
        limits: DriveLimits,
        on_observation: Callable[[Observation], None],
        *,
        allowance: Allowance | None = None,
        tenants: Sequence[str] = (),
        on_begin: Callable[[int], None] = lambda _index: None,
    ) -> None:
        self.plan = plan
        self._session, self._brake, self._limits = session, brake, limits
        self._on_observation, self._on_begin = on_observation, on_begin
        self._allowance = allowance or Allowance(None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: dict[asyncio.Future[None], None] = {}  # for a free place, first come first served
        self._prefilling = 0  # prompts in flight that are longer than one chunk
        self._tenants = tuple(tenants)
        self._pace = Pace()
        self._hung_up: set[asyncio.Task[None]] = set()  # told to the server a moment later
        self.asked = 0
        self.delivered = 0
        self.undelivered: Counter[str] = Counter()
        self.in_flight = 0
        self.tokens_prefilled = 0

    async def run(self, duration_s: float, shard: int = 0, shards: int = 1, first: int = 0) -> None:
        """Start items until ``duration_s`` has passed; returns then, with requests still in flight.

        ``first``: the index to go on from, which is due at once; the time before it counts as passed.

        A plan that is faster than this process can make its items never holds up the event loop, and the run
        ends on time all the same: what came too late counts as not delivered, by ``too-late``.
        """
        walk = self.plan.walk(shard, shards, first)
        ahead = next(walk)  # before the clock starts: a plan makes its tables with the first
        start = time.monotonic() - (ahead[0].at_us / 1e6 if first else 0.0)
        end = start + duration_s
        for items in itertools.chain([ahead], walk):
            root = items[0]
            intended = start + root.at_us / 1e6
            if intended >= end:
                break
            drawn = [self.plan.ids(p) for p in root.prompts] if intended > time.monotonic() else None
            await asyncio.sleep(max(0.0, intended - time.monotonic()))
            now = time.monotonic()
            if now >= end and now - intended > _PATIENCE_S:
                # the rest of the plan is never made: each index counts as one prompt
                self._too_late(1 + int((end - intended) * float(self.plan.spec.rate) / shards))
                break
            if now - intended > _PATIENCE_S:
                self._too_late(sum(len(i.prompts) for i in items if i.parent is None))
                continue
            task = asyncio.create_task(self.begin(items, intended, end, drawn))
            self._tasks.add(task)
            task.add_done_callback(self._scene_ended)
            await asyncio.sleep(0)  # it is sent before the next one is planned
        await asyncio.sleep(max(0.0, end - time.monotonic()))

    async def until_fault(self) -> None:
        """Raise what a scene raised: a fault of ours, which must end the run. Else wait for ever."""
        await asyncio.shield(self._fault)

    def _too_late(self, prompts: int) -> None:
        self.asked += prompts
        self.undelivered["too-late"] += prompts

    def _scene_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._fault.done():
            self._fault.set_exception(error)

    async def drain(self, within_s: float) -> int:
        """Wait for what is in flight, then cancel the rest; returns how many scenes were cancelled.

        Requests that hung up are left to the session, which aborts whatever may still run.
        """
        for task in self._hung_up:
            task.cancel()
        if not self._tasks:
            return 0
        _, late = await asyncio.wait(tuple(self._tasks), timeout=within_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)
        return len(late)

    def begin(
        self,
        items: tuple[Item, ...],
        intended: float,
        end: float,
        drawn: list[TokenIds] | None = None,
    ) -> Coroutine[Any, Any, None]:
        """One index begins now, and the next one may be planned; to be awaited, its steps.

        ``run`` does this for each index when it is due; none of the steps begins after ``end``. Times are
        seconds of ``time.monotonic()``. drawn: the ids of the first step's prompts, where they are there.
        """
        self._on_begin(items[0].index)
        return self._scene(items, intended, end, drawn)

    async def _scene(
        self, items: tuple[Item, ...], intended: float, end: float, drawn: list[TokenIds] | None
    ) -> None:
        """The steps of one index, each after its parent, or after the step before it."""
        finished: dict[int, tuple[TokenIds, Answer]] = {}
        for item in items:
            before: TokenIds | None = None
            if item.parent is None and item.step:
                intended = time.monotonic() + item.delay_us / 1e6
                if intended >= end:
                    continue  # the run is over before its turn
                await asyncio.sleep(item.delay_us / 1e6)
            elif item.parent is not None:
                parent = finished.get(item.parent)
                if parent is None:
                    continue  # its parent failed: nothing was asked, so nothing is owed
                before = np.concatenate([parent[0], parent[1].output_ids])
                intended = parent[1].finished_s + item.delay_us / 1e6
                if intended >= end:
                    continue  # the run is over before its turn
                await asyncio.sleep(max(0.0, intended - time.monotonic()))
            answered = await self._deliver(item, intended, before, drawn)
            drawn = None
            if answered is not None:
                finished[item.step] = answered

    async def _deliver(
        self, item: Item, intended: float, before: TokenIds | None, drawn: list[TokenIds] | None
    ) -> tuple[TokenIds, Answer] | None:
        """Send one item; the last good (ids, answer), which a follow-up continues from."""
        prompts = drawn or [self.plan.ids(p) for p in item.prompts]
        if before is not None:
            prompts = [np.concatenate([before, ids]) for ids in prompts]
        self.asked += len(prompts)
        reason = await self._refused(item, prompts, intended)
        if reason is not None:
            self.undelivered[reason] += len(prompts)
            return None
        self.delivered += len(prompts)
        # counted before anybody else gets to look: several that wait would all find the same free places
        companions = self.in_flight
        self.in_flight += len(prompts)
        if item.hold is None and (item.batched or len(prompts) == 1):  # most: no task of its own
            sent = [await self._send(item, 0, prompts, intended, before=companions, held=False)]
        else:
            sent = await self._send_together(item, prompts, intended, companions)
        good = [pair for group in sent for pair in group if pair[1].ok]
        return good[-1] if good else None

    async def _send_together(
        self, item: Item, prompts: list[TokenIds], intended: float, companions: int
    ) -> list[list[tuple[TokenIds, Answer]]]:
        """Several requests at once, or one around which the server is paused."""
        groups = [prompts] if item.batched else [[ids] for ids in prompts]
        async with contextlib.AsyncExitStack() as stack:
            held = False
            if item.hold is not None and item.hold.after_tokens is None:
                held = await stack.enter_async_context(self._session.held(item.hold.mode.value))
            sending = asyncio.gather(
                *(
                    self._send(item, *part, intended, before=companions, held=held)
                    for part in _numbered(groups)
                )
            )
            if item.hold is not None:
                stack.push_async_callback(_ended, sending)
                await self._hold(item.hold, sending, max(len(ids) for ids in prompts))
            return await sending

    async def _hold(self, hold: Hold, sending: asyncio.Future[Any], tokens: int) -> None:
        """Keep the server paused for as long as the plan says, from now or from its time on."""
        if hold.after_tokens is None:
            await asyncio.wait({sending}, timeout=hold.for_us / 1e6)
            await self._session.let_go_on()
            return
        when = Abort(AbortBy.REQUEST, after_tokens=hold.after_tokens)
        await asyncio.wait({sending}, timeout=self._pace.delay_s(when, tokens))
        if not sending.done():
            async with self._session.held(hold.mode.value):
                await asyncio.sleep(hold.for_us / 1e6)

    async def _refused(self, item: Item, prompts: list[TokenIds], intended: float) -> str | None:
        """Why this item is not sent, or None once it may go."""
        reason = self._brake.reason
        if reason is not None:
            return reason
        tokens = sum(len(ids) + item.max_new_tokens for ids in prompts)
        while self.in_flight + len(prompts) > self._limits.in_flight and self.in_flight:
            if not await self._freed(intended + _PATIENCE_S):
                return "in-flight-cap"
        if not self._allowance.take(tokens):
            return "token-budget"
        return None

    async def _freed(self, until_s: float) -> bool:
        """Wait for an answer that frees a place; False if none has come by then."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = None
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                await place
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(place, None)
        return True

    def _free(self, prompts: int) -> None:
        self.in_flight -= prompts
        if not self._waiting:
            return
        for place in list(itertools.islice(self._waiting, prompts)):
            self._waiting.pop(place)
            if not place.done():
                place.set_result(None)

    async def _send(
        self,
        item: Item,
        first_part: int,
        prompts: list[TokenIds],
        intended: float,
        *,
        before: int,
        held: bool,
    ) -> list[tuple[TokenIds, Answer]]:
        """One request. ``before``: prompts in flight when its item was sent; held: the server was paused."""
        companions, prefilling = before + first_part, self._prefilling
        namespace = self._namespace(item)
        long = sum(len(ids) > self.plan.spec.geometry.chunk for ids in prompts)
        self._prefilling += long
        try:
            answers, abort_us = await self._generate(item, first_part, prompts, namespace)
        finally:
            self._free(len(prompts))
            self._prefilling -= long
        for offset, (ids, answer) in enumerate(zip(prompts, answers, strict=True)):
            self.tokens_prefilled += max(0, answer.prompt_tokens - answer.cached_tokens)
            observation = Observation(
                item=item,
                part=first_part + offset,
                ids=ids,
                intended_s=intended,
                answer=answer,
                companions=companions + len(prompts) - 1,
                prefilling_companions=prefilling + long - int(len(ids) > self.plan.spec.geometry.chunk),
                namespace=namespace,
                abort_us=abort_us,
                held=held,
            )
            self._pace.observe(answer)
            if observation.ttft_s is not None and answer.first_token_s is not None:
                self._brake.first_token_after(answer.first_token_s - answer.sent_s)
            self._on_observation(observation)
        return list(zip(prompts, answers, strict=True))

    def _namespace(self, item: Item) -> str | None:
        if item.keyed is not None:
            return self.plan.spec.geometry.adapters[item.keyed]
        if item.tenant is None:
            return None
        return self._tenants[item.tenant] if self._tenants else self._session.tenant(item.tenant)

    async def _generate(
        self, item: Item, first_part: int, prompts: list[TokenIds], namespace: str | None
    ) -> tuple[tuple[Answer, ...], int | None]:
        """The answers, and after how many microseconds the request was taken back, None if it was not."""
        fields: dict[str, Any] = {
            "max_new_tokens": item.max_new_tokens,
            "temperature": item.temperature,
            "return_logprob": item.return_logprob,
            "stream": item.stream,
            "extra_key": namespace,
            "timeout_s": self._limits.timeout_s,
            "routed_dp_rank": self._session.rank_of(item.index),
        }
        if item.adapter is not None:
            fields["lora_path"] = self.plan.spec.geometry.adapters[item.adapter]
        if item.strict:
            code = code_of(self.plan.seed, self.plan.nonce, item.index, first_part)
            # a grammar ends its answer with the end token, which must then be heard
            fields |= {"json_schema": schema_of(code), "ignore_eos": False}
        if item.abort is None or item.abort.part not in (None, first_part):
            return await self._session.generate(prompts, **fields), None
        rids = tuple(self._session.rid() for _ in prompts)
        asked = asyncio.ensure_future(self._session.generate(prompts, rids=rids, **fields))
        try:
            return await self._take_back(item.abort, asked, rids, sum(len(ids) for ids in prompts))
        finally:
            asked.cancel()

    async def _take_back(
        self, abort: Abort, asked: asyncio.Future[tuple[Answer, ...]], rids: tuple[str, ...], tokens: int
    ) -> tuple[tuple[Answer, ...], int | None]:
        sent = time.monotonic()
        await asyncio.wait({asked}, timeout=self._pace.delay_s(abort, tokens))
        if asked.done():
            return asked.result(), None
        abort_us = round((time.monotonic() - sent) * 1e6)
        if abort.by is AbortBy.REQUEST:
            await self._session.abort(rids)
            answers = await asked
            return tuple(
                replace(a, outcome=Outcome.TAKEN_BACK) if a.outcome is Outcome.ABORTED else a for a in answers
            ), abort_us
        asked.cancel()
        await asyncio.wait({asked})
        later = asyncio.create_task(self._tell_later(rids))
        self._hung_up.add(later)
        later.add_done_callback(self._hung_up.discard)
        gone = time.monotonic()
        return tuple(
            Answer(rid, Outcome.TAKEN_BACK, "hung up, as planned", sent_s=sent, finished_s=gone)
            for rid in rids
        ), abort_us

    async def _tell_later(self, rids: tuple[str, ...]) -> None:
        """A server may never notice that a client is gone: nothing of ours shall run on for ever."""
        await asyncio.sleep(_HUNG_UP_S)
        await self._session.abandon(rids)


async def _ended(sending: asyncio.Future[Any]) -> None:
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


def _numbered(groups: list[list[TokenIds]]) -> list[tuple[int, list[TokenIds]]]:
    first, numbered = 0, []
    for group in groups:
        numbered.append((first, group))
        first += len(group)
    return numbered
