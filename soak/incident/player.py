"""Sends the requests of a trace once more, in their order and side by side as they were, on one session.

It asks no question and judges nothing; whoever asks is called when the recorded question was asked. Nothing a
server does raises here. Cancelled, it leaves its requests to the session, which takes them back.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np

from soak.drive.deed import PAUSE
from soak.drive.doing import Hands, Leash, NotDoneError, do, prompts_of, unleashed
from soak.incident.order import Order, Request, Speed, order_of
from soak.incident.salt import Salt
from soak.incident.trace import Acted, Seen, Sent, Trace
from soak.plan.strict import schema_of
from soak.sglang.exchange import Answer, TokenIds
from soak.sglang.session import Session

_KEPT_PAUSE_GAP_US = 250_000
"""At full speed, of the time between a request and the pause that was meant to find it generating."""

Gate = Callable[[int], Awaitable[None]]
"""Waits until so many tokens may be asked of the server."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a trace is sent.

    forced: follow-ups go on from the recorded outputs, not from what comes back now.

    act: whether the actions of the trace are done again, as far as a replay can; leash: told of each before
    it is in force. apart: the shared namespace of the trace becomes an ``extra_key`` of its own; only for ids
    that are sent as they were more than once.
    """

    speed: Speed = Speed.MAX
    forced: bool = False
    apart: bool = False
    timeout_s: float = 120.0
    act: bool = False
    leash: Leash = unleashed


class Player:
    """One trace being sent; ``ids`` and ``answers`` by position in the trace, None where not yet or never."""

    def __init__(self, session: Session, trace: Trace, salt: Salt, manner: Manner, gate: Gate) -> None:
        self.session, self.trace, self.salt = session, trace, salt
        self._manner, self._gate = manner, gate
        self.order: Order = order_of(trace)
        self.ids: list[TokenIds | None] = [None] * len(trace.sent)
        self.answers: list[Answer | None] = [None] * len(trace.sent)
        self.lost_parents = 0
        self._ended = [asyncio.Event() for _ in self.order.requests]
        self._prefix = 0  # so many of order.ends have ended, without a gap
        self._namespaces: dict[str, str | None] = {"": session.namespace() if manner.apart else None}
        self._started_s = 0.0
        acted = trace.acted if manner.act else ()
        self._acted = tuple(each for each in acted if each.playable)
        self._over = [asyncio.Event() for _ in self._acted]
        self._in_force = [asyncio.Event() for _ in self._acted]
        self._acted_at: list[tuple[int, int]] = [(0, 0)] * len(self._acted)
        self._starts = [request.at_us for request in self.order.requests]
        self._ends = sorted(
            max(request.at_us, *(trace.seen[place].finished_us for place in request.places))
            for request in self.order.requests
        )
        self.done: list[Acted] = []
        self.refused: list[str] = []

    def namespace(self, name: str) -> str | None:
        """The ``extra_key`` that stands for a namespace of the trace in this replay."""
        if name not in self._namespaces:
            self._namespaces[name] = name[1:] if name.startswith("=") else self.session.namespace()
        return self._namespaces[name]

    async def gate(self, tokens: int) -> None:
        """Wait until ``tokens`` may be asked of the server."""
        await self._gate(tokens)

    def written(self, place: int) -> TokenIds | None:
        """Prompt and output of a prompt that has been answered; None for one that came to nothing."""
        ids, answer = self.ids[place], self.answers[place]
        if ids is None or answer is None or not answer.ok:
            return None
        output = self.trace.seen[place].output_ids
        return np.concatenate([ids, self.salt(output) if self._manner.forced else answer.output_ids])

    async def until_ended(self, place: int) -> None:
        """Wait for the answer to one prompt."""
        for request, ended in zip(self.order.requests, self._ended, strict=True):
            if place in request.places:
                await ended.wait()

    async def play(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Send everything; ``ask`` runs beside what was in flight when the case was asked."""
        self._started_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, request in enumerate(self.order.requests):
                if number == self.order.probe_after:
                    group.create_task(self._asked(ask))
                self._begin_acts(group, number)
                if self._acted:
                    await self._until_over(request.at_us)
                    await self._until_paused(request.at_us)
                if self._manner.speed is Speed.MAX:
                    await self._turn(request)
                group.create_task(self._send(number, request))
            self._begin_acts(group, len(self.order.requests))
            if self.order.probe_after == len(self.order.requests):
                group.create_task(self._asked(ask))

    async def _asked(self, ask: Callable[[], Awaitable[None]]) -> None:
        if self._manner.speed is Speed.RECORDED:
            await self._at(self.trace.case.at_us)
        await self._until(self.order.probe_ends)
        await self._until_over(self.trace.case.at_us or None)
        await ask()

    def _begin_acts(self, group: asyncio.TaskGroup, requests: int) -> None:
        """Those that began when so many requests had been sent."""
        for place, acted in enumerate(self._acted):
            if bisect_right(self._starts, acted.at_us) == requests:
                group.create_task(self._act(place))

    async def _until_over(self, us: int | None) -> None:
        """Wait for the actions that were over by then; for all of them without a time."""
        for acted, over in zip(self._acted, self._over, strict=True):
            if us is None or acted.at_us + acted.took_us <= us:
                await over.wait()

    async def _until_paused(self, us: int) -> None:
        """Wait for pauses that had begun by then: what was sent into one queued up there."""
        for acted, in_force in zip(self._acted, self._in_force, strict=True):
            if acted.name == PAUSE and acted.at_us <= us:
                await in_force.wait()

    async def _act(self, place: int) -> None:
        """One action of the trace: a pause lasts as long as it did, since nothing ends meanwhile."""
        acted = self._acted[place]
        try:
            if self._manner.speed is Speed.RECORDED:
                await self._at(acted.at_us)
            await self._until(bisect_left(self._ends, acted.at_us))
            if self._manner.speed is Speed.MAX and acted.name == PAUSE:
                await asyncio.sleep(self._gap_us(acted) / 1e6)
            began = self.now_us()
            made = [self.salt(ids) for ids in self._prompts_of(acted)]
            hands = Hands(
                self.session.client,
                self.session,
                made,
                self._manner.timeout_s,
                self._manner.leash,
                self._in_force[place].set,
            )
            try:
                await do(acted.name, acted.settings, hands)
            except NotDoneError as error:
                self.refused.append(f"{acted.name}: {error}")
            else:
                self.done.append(acted)
            self._acted_at[place] = (began, self.now_us() - began)
        finally:
            self._in_force[place].set()
            self._over[place].set()

    def _gap_us(self, acted: Acted) -> int:
        """How long after what was sent or ended last a pause began: it may have wanted a prompt to run."""
        starts, ends = bisect_right(self._starts, acted.at_us), bisect_left(self._ends, acted.at_us)
        last = max(self._starts[starts - 1] if starts else 0, self._ends[ends - 1] if ends else 0)
        return min(_KEPT_PAUSE_GAP_US, max(0, acted.at_us - last))

    def _prompts_of(self, acted: Acted) -> list[TokenIds]:
        ordinary = (self.salt.low, self.salt.low + len(self.salt.table))
        return prompts_of(acted.settings, ordinary) if acted.settings.get("prompts") else []

    def as_acted(self) -> tuple[Acted, ...]:
        """The actions as they went this time."""
        times = zip(self._acted, self._acted_at, strict=True)
        return tuple(replace(acted, at_us=at_us, took_us=took) for acted, (at_us, took) in times)

    async def _turn(self, request: Request) -> None:
        """Full speed: wait for what had ended before this request was sent, and keep its short distance."""
        await self._until(request.finished_before)
        if request.gap_us:
            await asyncio.sleep(request.gap_us / 1e6)

    async def _at(self, at_us: int) -> None:
        await asyncio.sleep(max(0.0, self._started_s + at_us / 1e6 - time.monotonic()))

    async def _until(self, ends: int) -> None:
        """Wait until the first so many requests, by their recorded ends, have ended again."""
        while self._prefix < ends:
            at = self._prefix
            await self._ended[self.order.ends[at]].wait()
            self._prefix = max(self._prefix, at + 1)

    async def _send(self, number: int, request: Request) -> None:
        try:
            for parent in request.parents:
                await self._ended[parent].wait()
            if self._manner.speed is Speed.RECORDED:
                if request.parents:
                    await asyncio.sleep(request.after_parent_us / 1e6)
                await self._at(request.at_us)
            await self._exchange(request)
        finally:
            self._ended[number].set()

    async def _exchange(self, request: Request) -> None:
        prompts = [self._prompt(place) for place in request.places]
        sent = self.trace.sent[request.places[0]]
        await self._gate(sum(len(ids) + sent.max_new_tokens for ids in prompts))
        for place, ids in zip(request.places, prompts, strict=True):
            self.ids[place] = ids
        rids = tuple(self.session.rid() for _ in prompts)
        aborting = [
            asyncio.create_task(self._abort(rid, self.trace.sent[place].abort_us))
            for place, rid in zip(request.places, rids, strict=True)
        ]
        try:
            answers = await self.session.generate(
                prompts,
                rids=rids,
                max_new_tokens=sent.max_new_tokens,
                temperature=sent.temperature_milli / 1000,
                stream=sent.stream,
                return_logprob=sent.return_logprob,
                logprob_start_len=sent.logprob_start_len,
                extra_key=self.namespace(sent.namespace),
                lora_path=sent.adapter or None,
                json_schema=schema_of(sent.code) if sent.code else None,
                ignore_eos=not sent.code,  # a grammar ends its answer with the end token
                timeout_s=self._manner.timeout_s,
            )
        finally:
            for task in aborting:
                task.cancel()
        for place, answer in zip(request.places, answers, strict=True):
            self.answers[place] = answer

    async def _abort(self, rid: str, after_us: int | None) -> None:
        if after_us is not None:
            await asyncio.sleep(after_us / 1e6)
            await self.session.abort([rid])

    def _prompt(self, place: int) -> TokenIds:
        """The ids of one prompt: what its parent came to this time, then its own under the salt."""
        sent = self.trace.sent[place]
        if sent.parent is None or self._manner.forced:
            return self.salt(sent.ids)
        before = self.written(sent.parent)
        if before is None or len(before) < sent.inherits:
            self.lost_parents += 1
            return self.salt(sent.ids)
        return np.concatenate([before[: sent.inherits], self.salt(sent.ids[sent.inherits :])])

    def as_played(self) -> tuple[tuple[Sent, ...], tuple[Seen, ...], list[int | None]]:
        """What was sent and seen this time, in order, and where each prompt of the trace is in it now."""
        places = sorted(
            (place for place, answer in enumerate(self.answers) if answer is not None), key=self._sent_order
        )
        now: list[int | None] = [None] * len(self.trace.sent)
        for new, place in enumerate(places):
            now[place] = new
        sent, seen = [], []
        for place in places:
            ids, answer, was = self.ids[place], self.answers[place], self.trace.sent[place]
            if ids is None or answer is None:
                raise LookupError(f"prompt {place} was answered and never sent")
            at_us = self.since_start_us(answer.sent_s)
            parent = None if was.parent is None else now[was.parent]
            sent.append(
                replace(
                    was,
                    ids=ids,
                    at_us=at_us,
                    sent_us=at_us,
                    parent=parent,
                    inherits=was.inherits if parent is not None else 0,
                )
            )
            seen.append(_seen(answer, self.since_start_us(answer.finished_s)))
        return tuple(sent), tuple(seen), now

    def _sent_order(self, place: int) -> tuple[float, int]:
        answer = self.answers[place]
        return (answer.sent_s if answer is not None else 0.0, place)

    def now_us(self) -> int:
        """Whole microseconds since this replay began."""
        return self.since_start_us(time.monotonic())

    def since_start_us(self, monotonic_s: float) -> int:
        """Whole microseconds from the start of this replay."""
        return max(0, round((monotonic_s - self._started_s) * 1e6))


def _seen(answer: Answer, finished_us: int) -> Seen:
    return Seen(
        outcome=answer.outcome.value,
        finished_us=finished_us,
        cached_tokens=answer.cached_tokens,
        cached_host_tokens=answer.cached_details.get("host", 0),
        num_retractions=answer.num_retractions,
        output_ids=answer.output_ids,
    )
