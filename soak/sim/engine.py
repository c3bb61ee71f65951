"""The scheduler on a thread of its own, and the only way to reach it: commands in, updates out.

Commands are plain callables run between two steps; updates are handed to the event loop once per step. The
engine knows nothing of HTTP; nothing outside this thread may touch the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.counters import Counters
from soak.sim.request import InputLogprobs, Request
from soak.sim.runner import Runner
from soak.sim.scheduler import Scheduler

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Update:
    """What is new about one request.

    Tokens since the last update with their scores, prompt scores once, the end.
    """

    rid: str
    output: list[int]
    logprobs: list[float]
    top: list[tuple[list[float], list[int]]]
    picked: list[list[float]]
    inputs: InputLogprobs | None
    finish: dict[str, Any] | None
    cached: int
    cached_device: int
    cached_host: int
    retractions: int
    queue_time_s: float
    completion_tokens: int


def swap_outputs(updates: list[Update]) -> list[Update]:
    """A step's finished outputs as columns, with only the column of ids sorted: outputs change hands.

    Only outputs of one length change hands, or a client would see it from the number of tokens.
    """
    swapped = list(updates)
    by_length: dict[int, list[int]] = {}
    for i, update in enumerate(updates):
        if update.finish is not None:
            by_length.setdefault(len(update.output), []).append(i)
    for places in by_length.values():
        ids = sorted((updates[i].rid for i in places), reverse=True)
        for i, rid in zip(places, ids, strict=True):
            (own,) = [u for u in updates if u.rid == rid]
            other = updates[i]
            mixed = replace(
                own, output=other.output, logprobs=other.logprobs, top=other.top, picked=other.picked
            )
            swapped[updates.index(own)] = mixed
    return swapped


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # the caller may have been cancelled meanwhile
        future.set_result(result)


class EngineDead(RuntimeError):
    """The scheduler has died of an exception; the message is its own."""


class Engine:
    """Owns the thread. On ``loop``, ``deliver`` gets what a step brought; ``died`` is called if one fails."""

    def __init__(
        self,
        config: SimConfig,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[list[Update]], None],
        died: Callable[[], None],
    ) -> None:
        self.config = config
        self.counters = Counters()
        self.cache = Cache(config)
        self.scheduler = Scheduler(config, self.cache, Runner(config, self.cache), self.counters, self._emit)
        self.failure: str | None = None
        self._loop = loop
        self._deliver = deliver
        self._died = died
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._updates: list[Update] = []
        self._thread = threading.Thread(target=self._run, name="soak-sim-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the step under way, and wait for it."""
        self._commands.put(None)
        self._thread.join()

    def post(self, command: Callable[[], None]) -> None:
        """Run ``command`` between two steps; do not wait."""
        self._commands.put(command)

    async def call(self, command: Callable[[], T]) -> T:
        """Run ``command`` between two steps and return what it returned. Raises EngineDead."""
        if self.failure is not None:
            raise EngineDead(self.failure)
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            result = command()
            self._loop.call_soon_threadsafe(_settle, future, result)

        self._commands.put(run)
        return await future

    def _run(self) -> None:
        try:
            while self._obey(block=False):
                busy = self.scheduler.step()
                self._flush_updates()
                if not busy and not self._obey(block=True):
                    return
                if busy and self.config.step_delay_s:
                    time.sleep(self.config.step_delay_s)
        except Exception as error:
            # As when a scheduler process dies: the server stays up, says so on /health, and
            # serves nothing more.
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("the simulator's scheduler died")
            self._loop.call_soon_threadsafe(self._died)

    def _obey(self, block: bool) -> bool:
        """Run the commands that have come in; False once told to stop."""
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            self._flush_updates()
            block = False

    def _flush_updates(self) -> None:
        if self._updates:
            updates, self._updates = self._updates, []
            if "identity-swap" in self.config.faults:
                updates = swap_outputs(updates)
            self._loop.call_soon_threadsafe(self._deliver, updates)

    def _emit(self, request: Request) -> None:
        seen, shown = request.reported, min(len(request.output), request.sampling.max_new_tokens)
        started = request.started_s if request.started_s is not None else time.monotonic()
        inputs = None
        if request.input_done and not request.reported_inputs:
            inputs, request.reported_inputs = request.inputs, True
        if seen == 0 and request.output:
            self.counters.first_token(request)
        self._updates.append(
            Update(
                rid=request.rid,
                output=request.output[seen:shown],
                logprobs=request.output_logprobs[seen:shown],
                top=request.output_top[seen:shown],
                picked=request.output_picked[seen:shown],
                inputs=inputs,
                finish=request.finish,
                cached=request.cached,
                cached_device=request.cached_device,
                cached_host=request.cached_host,
                retractions=request.retractions,
                queue_time_s=started - request.arrived_s,
                completion_tokens=shown,
            )
        )
        request.reported = shown
