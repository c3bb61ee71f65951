"""Continuous batching: what runs next.

One ``step`` launches one batch (prefill, mixed, decode or verification) and processes one result: the same
batch's, or under overlap the one launched before, as SGLang's event loop does. Single-threaded; it knows
nothing of HTTP and never sleeps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from soak.sim.admission import Admission
from soak.sim.batch import Chunk, build_decode, build_extend
from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.counters import Counters
from soak.sim.model import no_wait
from soak.sim.pools import OutOfSlots
from soak.sim.radix import there
from soak.sim.request import Request
from soak.sim.results import ABORTED, Launched, Results
from soak.sim.runner import Runner
from soak.sim.speculative import Verifier

ABORTED_WAITING = {"type": "abort", "message": "Abort in waiting queue"}
OUT_OF_MEMORY = {
    "type": "abort",
    "message": "Out of memory: a single request needs more tokens than the pool holds.",
    "status_code": 500,
    "err_type": "InternalServerError",
}


@dataclass(slots=True)
class Scheduler:
    """Queues and the step. ``emit`` is called with a request whenever it has something new to report."""

    config: SimConfig
    cache: Cache
    runner: Runner
    counters: Counters
    emit: Callable[[Request], None]
    waiting: deque[Request] = field(default_factory=deque)
    chunked: Request | None = None
    paused: bool = False
    crowded: bool = False
    in_flight: Launched | None = None
    admission: Admission = field(init=False)
    results: Results = field(init=False)
    verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        """Bind the parts that share the cache."""
        self.admission = Admission(self.config, self.cache)
        self.results = Results(self.config, self.cache, self.counters, self.emit)
        self.verifier = Verifier(self.config, self.cache, self.runner, self.results)

    @property
    def running(self) -> list[Request]:
        """Requests that are past their prefill."""
        return self.results.running

    # -- commands --------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def abort(self, rid: str, everything: bool = False) -> None:
        """Abort by rid prefix: waiting ones leave at once, running ones after their next step."""

        def named(request: Request) -> bool:
            return everything or request.rid.startswith(rid)

        for request in [r for r in self.waiting if named(r)]:
            self.waiting.remove(request)
            self.cache.drop_prefetch(request)
            self.results.finish(request, dict(ABORTED_WAITING))
        if self.chunked is not None and named(self.chunked):
            self._settle()
            request, self.chunked = self.chunked, None
            self.cache.cache_finished(request, insert=False)
            self.results.finish(request, dict(ABORTED))
        for request in self.running:
            if named(request):
                request.to_abort = True

    def pause(self, mode: str) -> None:
        """Stop scheduling. ``in_place`` leaves everything.

        ``retract`` sends every started request back to the queue.
        """
        self.paused = True
        if mode == "retract":
            self._settle()
            started = [*self.running, *([self.chunked] if self.chunked is not None else [])]
            self.running.clear()
            self.chunked = None
            for request in started:
                self._retract(request)

    def resume(self) -> None:
        """Schedule again."""
        self.paused = False

    @property
    def idle(self) -> bool:
        """Nothing holds a slot and nothing waits (waiting requests of a paused server do not count)."""
        waiting = bool(self.waiting) and not self.paused
        loading = self.cache.host is not None and not self.cache.host.idle
        return not (waiting or loading or self.running or self.chunked or self.in_flight)

    def flush(self) -> bool:
        """Drop the cache if idle. False, and nothing done, otherwise."""
        if not self.idle:
            return False
        for request in self.waiting:
            self.cache.drop_prefetch(request)
        self.cache.flush()
        return True

    # -- the step --------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Launch one batch and process one result. False: there was nothing to do."""
        if self.paused:
            return False
        loading = self._load()
        before, self.in_flight = self.in_flight, None
        launched = self._launch()
        if launched is None and before is None and self._let_go():
            launched = self._launch()
        if launched is not None:
            self.crowded = False
        if self.config.overlap:
            self.in_flight = launched
        elif launched is not None:
            self.results.process(launched)
        if before is not None:
            self.results.process(before)
        return loading or launched is not None or before is not None

    def _load(self) -> bool:
        """Give the host link its time, and begin to load for those who wait. True: something is under way."""
        host = self.cache.host
        if host is None:
            return False
        host.progress()
        for request in self.waiting if not self.crowded else ():
            self.cache.prefetch(request)
        return not host.idle

    def _let_go(self) -> bool:
        """Where nothing can run, waiting requests give back what was loaded for them ahead of their turn.

        Nothing more is loaded ahead until something runs, or what has been let go of would be taken again.
        """
        holding = [request for request in self.waiting if request.prefetched is not None]
        for request in holding:
            self.cache.drop_prefetch(request)
        self.crowded = self.crowded or bool(holding)
        return bool(holding)

    def _settle(self) -> None:
        """Process the result in flight, if any."""
        before, self.in_flight = self.in_flight, None
        if before is not None:
            self.results.process(before)

    def _launch(self) -> Launched | None:
        if self.chunked is not None:
            self.cache.cache_unfinished(self.chunked, self.chunked.kv_len)
        plan = self.admission.plan(self.chunked, self.waiting, self.running)
        for request in [*plan.admitted, *plan.restored]:
            self.waiting.remove(request)
            request.started_s = request.started_s or time.monotonic()
            self.counters.admitted(request)
        self.running.extend(plan.restored)
        if plan.chunks:
            return self._launch_extend(plan.chunks)
        if not self.running:
            return None
        if self.config.spec_draft_tokens:
            return self._verify()
        return self._launch_decode()

    def _launch_extend(self, chunks: list[Chunk]) -> Launched:
        if self.config.mixed_chunk and self.running:
            self._make_room()
            decoding = [Chunk(r, r.launched_len - 1, r.launched_len, decode=True) for r in self.running]
            chunks = [*chunks, *decoding]
        batch = build_extend(self.config, chunks, self.cache.table)
        tracks = self.results.tracks([(c.request, c.end) for c in chunks if c.decode])
        result = self.runner.extend(batch, chunks, self._wait(chunks))
        requests = [c.request for c in chunks]
        launched = Launched(chunks, requests, tracks, [r.retractions for r in requests], result)
        self.counters.prefilled(sum(c.end - c.start for c in chunks if not c.decode), result.graph)
        self.chunked = None
        for chunk, sampled in zip(chunks, result.sampled, strict=True):
            request = chunk.request
            request.kv_len, request.resumed = chunk.end, False
            request.initial_slot, request.has_state = request.state_slot, True
            if sampled is None:
                self.chunked = request
            else:
                request.future.append(sampled.token)
                if not chunk.decode:
                    self.running.append(request)
        return launched

    def _wait(self, chunks: list[Chunk]) -> Callable[[int], None]:
        """What the forward pass calls before it reads a layer of its requests' cached prefixes."""
        host = self.cache.host
        if host is None or host.idle:
            return no_wait
        rows = [self.cache.table.slots[c.request.row, : c.start] for c in chunks]
        needed = np.concatenate(rows)
        return lambda layer: host.wait(needed, layer)

    def _launch_decode(self) -> Launched | None:
        self._make_room()
        requests = list(self.running)
        if not requests:
            return None
        batch = build_decode(self.config, requests, self.cache.table)
        tracks = self.results.tracks([(r, r.launched_len) for r in requests])
        result = self.runner.decode(batch, requests)
        launched = Launched([], requests, tracks, [r.retractions for r in requests], result)
        for request, sampled in zip(requests, result.sampled, strict=True):
            request.kv_len = request.launched_len
            request.future.append(there(sampled).token)
        self.counters.decoded(len(requests), result.graph)
        self.admission.relax()
        return launched

    def _verify(self) -> Launched | None:
        """A speculative step, processed at once; returns an empty batch as the sign that something ran."""
        self._make_room(self.config.spec_draft_tokens)
        if not self.running:
            return None
        rows = len(self.running)
        result = self.verifier.step(list(self.running))
        self.counters.decoded(rows, result.graph)
        self.admission.relax()
        return Launched([], [], {}, [], result)

    # -- memory pressure -------------------------------------------------------------------------------------

    def _make_room(self, drafts: int = 0) -> None:
        """A slot for every running request's next token (and drafts), retracting the least advanced if need
        be.
        """
        for request in sorted(self.running, key=lambda r: (-len(r.output), len(r.prompt))):
            while request in self.running:
                try:
                    self.cache.extend_row(request, request.launched_len + drafts)
                    break
                except OutOfSlots:
                    self._retract_one()

    def _retract_one(self) -> None:
        victim = min(self.running, key=lambda r: (len(r.output), -len(r.prompt)))
        self.running.remove(victim)
        if not self.running and self.chunked is None:
            self.cache.cache_finished(victim, insert=False)
            self.results.finish(victim, dict(OUT_OF_MEMORY))
            return
        self.counters.retracted()
        self.admission.tighten()
        self._retract(victim)

    def _retract(self, request: Request) -> None:
        request.retractions += 1
        request.future.clear()
        if self.config.retraction_backup and request.output:
            self.cache.back_up(request)
        self.cache.release(request, keep_from=request.protected)
        self.waiting.append(request)
