"""Continuous batching: what runs next, and what its result means for each request.

One ``step`` launches one batch (prefill, mixed or decode) and processes one result: the same batch's, or
under overlap the one launched before, as SGLang's event loop does. Single-threaded; it knows nothing of HTTP
and never sleeps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from soak.sim.admission import Admission
from soak.sim.batch import Chunk, build_decode, build_extend
from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.counters import Counters
from soak.sim.model import no_wait
from soak.sim.pools import OutOfSlots
from soak.sim.radix import there
from soak.sim.request import InputLogprobs, Request
from soak.sim.runner import ForwardResult, Runner, Sampled, TokenScores

ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_WAITING = {"type": "abort", "message": "Abort in waiting queue"}
OUT_OF_MEMORY = {
    "type": "abort",
    "message": "Out of memory: a single request needs more tokens than the pool holds.",
    "status_code": 500,
    "err_type": "InternalServerError",
}


@dataclass(slots=True)
class Launched:
    """A batch whose result is still to be processed, with what its requests looked like when it was launched.

    tracks: see ``_tracks``; epochs: retractions so far, per row.
    """

    chunks: list[Chunk]
    requests: list[Request]
    tracks: dict[str, tuple[int, int]]
    epochs: list[int]
    result: ForwardResult


@dataclass(slots=True)
class Scheduler:
    """Queues and the step. ``emit`` is called with a request whenever it has something new to report."""

    config: SimConfig
    cache: Cache
    runner: Runner
    counters: Counters
    emit: Callable[[Request], None]
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    chunked: Request | None = None
    paused: bool = False
    in_flight: Launched | None = None
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        """Bind the admission rules to the cache."""
        self.admission = Admission(self.config, self.cache)

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
            self._finish(request, dict(ABORTED_WAITING))
        if self.chunked is not None and named(self.chunked):
            request, self.chunked = self.chunked, None
            self._settle()
            self.cache.cache_finished(request, insert=False)
            self._finish(request, dict(ABORTED))
        for request in self.running:
            if named(request):
                request.to_abort = True

    def pause(self, mode: str) -> None:
        """Stop scheduling.

        ``in_place`` leaves everything; ``retract`` sends every started request back to the queue.
        """
        self.paused = True
        if mode == "retract":
            self._settle()
            started = [*self.running, *([self.chunked] if self.chunked is not None else [])]
            self.running, self.chunked = [], None
            for request in started:
                self._retract(request)

    def resume(self) -> None:
        """Schedule again."""
        self.paused = False

    @property
    def idle(self) -> bool:
        """Nothing holds a slot and nothing waits (waiting requests of a paused server do not count)."""
        waiting = bool(self.waiting) and not self.paused
        return not (waiting or self.running or self.chunked or self.in_flight)

    def flush(self) -> bool:
        """Drop the cache if idle. False, and nothing done, otherwise."""
        if not self.idle:
            return False
        self.cache.flush()
        return True

    # -- the step --------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Launch one batch and process one result. False: there was nothing to do."""
        if self.paused:
            return False
        before, self.in_flight = self.in_flight, None
        launched = self._launch()
        if not self.config.overlap:
            if launched is not None:
                self._process(launched)
            return launched is not None
        self.in_flight = launched
        if before is not None:
            self._process(before)
        return launched is not None or before is not None

    def _settle(self) -> None:
        """Process the result in flight, if any."""
        before, self.in_flight = self.in_flight, None
        if before is not None:
            self._process(before)

    def _launch(self) -> Launched | None:
        chunks, admitted = self.admission.plan(self.chunked, self.waiting, self.running)
        for request in admitted:
            self.waiting.remove(request)
            request.started_s = request.started_s or time.monotonic()
            self.counters.admitted(request)
        if chunks:
            return self._launch_extend(chunks)
        if self.running:
            return self._launch_decode()
        return None

    def _launch_extend(self, chunks: list[Chunk]) -> Launched:
        if self.config.mixed_chunk and self.running:
            self._make_room()
            chunks = chunks + [
                Chunk(r, r.launched_len - 1, r.launched_len, decode=True) for r in self.running
            ]
        batch = build_extend(self.config, chunks, self.cache.table)
        tracks = self._tracks([(c.request, c.end) for c in chunks if c.decode])
        host = self.cache.host
        result = self.runner.extend(batch, chunks, host.wait if host is not None else no_wait)
        launched = self._launched(chunks, [c.request for c in chunks], tracks, result)
        if host is not None:
            host.finish()
        self.counters.prefilled(sum(c.end - c.start for c in chunks if not c.decode), result.graph)
        self.chunked = None
        for chunk, sampled in zip(chunks, result.sampled, strict=True):
            request = chunk.request
            request.kv_len, request.has_state, request.resumed = chunk.end, True, False
            if sampled is None:
                self.chunked = request
            else:
                request.future.append(sampled.token)
                if not chunk.decode:
                    self.running.append(request)
        return launched

    def _launch_decode(self) -> Launched | None:
        self._make_room()
        requests = list(self.running)
        if not requests:
            return None
        batch = build_decode(self.config, requests, self.cache.table)
        tracks = self._tracks([(r, r.launched_len) for r in requests])
        result = self.runner.decode(batch, requests)
        launched = self._launched([], requests, tracks, result)
        for request, sampled in zip(requests, result.sampled, strict=True):
            request.kv_len = request.launched_len
            request.future.append(there(sampled).token)
        self.counters.decoded(len(requests), result.graph)
        self.admission.relax()
        return launched

    def _tracks(self, rows: list[tuple[Request, int]]) -> dict[str, tuple[int, int]]:
        """rid -> (ping-pong index, length) of the decode rows that cross a track boundary in this batch.

        Taken when the batch is launched: under overlap the requests have moved on by the time of its result.
        """
        if not self.config.extra_buffer:
            return {}
        interval = self.config.mamba_track_interval
        return {r.rid: (r.next_track, end) for r, end in rows if end % interval == 0}

    @staticmethod
    def _launched(
        chunks: list[Chunk],
        requests: list[Request],
        tracks: dict[str, tuple[int, int]],
        result: ForwardResult,
    ) -> Launched:
        return Launched(chunks, requests, tracks, [r.retractions for r in requests], result)

    # -- memory pressure -------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """A slot for every running request's next token, retracting the least advanced ones if need be."""
        for request in sorted(self.running, key=lambda r: (-len(r.output), len(r.prompt))):
            while request in self.running:
                try:
                    self.cache.extend_row(request, request.launched_len)
                    break
                except OutOfSlots:
                    self._retract_one()

    def _retract_one(self) -> None:
        victim = min(self.running, key=lambda r: (len(r.output), -len(r.prompt)))
        self.running.remove(victim)
        if not self.running and self.chunked is None:
            self.cache.cache_finished(victim, insert=False)
            self._finish(victim, dict(OUT_OF_MEMORY))
            return
        self.counters.retracted()
        self.admission.tighten()
        self._retract(victim)

    def _retract(self, request: Request) -> None:
        request.retractions += 1
        request.future.clear()
        self.cache.release(request, keep_from=request.protected)
        self.waiting.append(request)

    # -- results ---------------------------------------------------------------------------------------------

    def _process(self, launched: Launched) -> None:
        for i, request in enumerate(launched.requests):
            if request.finish is not None or request.retractions != launched.epochs[i]:
                continue
            sampled = launched.result.sampled[i]
            chunk = launched.chunks[i] if launched.chunks else None
            if chunk is not None and not chunk.decode:
                self._take_inputs(request, launched.result.inputs[i], last=sampled is not None)
            if sampled is None:
                self.cache.cache_unfinished(request, there(chunk).end)
                continue
            request.future.pop(0)
            self._take_token(request, sampled)
            if request.rid in launched.tracks:
                self._tracked(request, *launched.tracks[request.rid])
            self._settle_token(request, chunk)

    def _tracked(self, request: Request, buffer: int, length: int) -> None:
        """A decode step left a checkpoint: remember which, and write the next one to the other slot."""
        request.last_track, request.last_track_len = buffer, length
        request.next_track = 1 - buffer

    def _settle_token(self, request: Request, chunk: Chunk | None) -> None:
        finish = self._finish_reason(request)
        if finish is not None:
            self.running.remove(request)
            self.cache.cache_finished(request)
            self._finish(request, finish)
            return
        if chunk is not None and not chunk.decode:
            self.cache.cache_unfinished(request, chunk.end)
        if request.stream:
            self.emit(request)

    def _take_inputs(self, request: Request, scores: list[TokenScores], last: bool) -> None:
        if not request.return_logprob or request.logprob_start_len < 0 or request.input_done:
            return
        if request.inputs is None:
            request.inputs = InputLogprobs()
        request.inputs.chosen.extend(s.chosen for s in scores)
        if request.top_logprobs_num > 0:
            request.inputs.top.extend(s.top for s in scores)
        if request.token_ids_logprob is not None:
            request.inputs.picked.extend(s.picked for s in scores)
        request.input_done = last

    def _take_token(self, request: Request, sampled: Sampled) -> None:
        request.output.append(sampled.token)
        if sampled.scores is not None:
            request.output_logprobs.append(sampled.scores.chosen)
            if request.top_logprobs_num > 0:
                request.output_top.append(sampled.scores.top)
            if request.token_ids_logprob is not None:
                request.output_picked.append(sampled.scores.picked)

    def _finish_reason(self, request: Request) -> dict[str, Any] | None:
        if request.to_abort:
            return dict(ABORTED)
        sampling, token = request.sampling, request.output[-1]
        if len(request.output) >= sampling.max_new_tokens:
            return {"type": "length", "length": sampling.max_new_tokens}
        if token in sampling.stop_token_ids or (token == EOS and not sampling.ignore_eos):
            return {"type": "stop", "matched": token}
        return None

    def _finish(self, request: Request, reason: dict[str, Any]) -> None:
        request.finish = reason
        self.counters.finished(request)
        self.emit(request)


EOS = 2
