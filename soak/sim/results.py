"""What a batch's result means for its requests: tokens, scores, checkpoints, the end.

The part of the scheduler that runs after the forward pass. Under overlap that is one step late: the requests
have moved on, and only what was written down at launch may be trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from soak.sim.batch import Chunk
from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.counters import Counters
from soak.sim.request import EOS, InputLogprobs, Request
from soak.sim.runner import ForwardResult, Sampled, TokenScores

ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

Tracks = dict[str, tuple[int, int]]


@dataclass(slots=True)
class Launched:
    """A batch whose result is still to be processed, with what its requests looked like when it was launched.

    tracks: rid -> (ping-pong index, length) of rows that cross a track boundary; epochs: retractions so far,
    per row.
    """

    chunks: list[Chunk]
    requests: list[Request]
    tracks: Tracks
    epochs: list[int]
    result: ForwardResult


@dataclass(slots=True)
class Results:
    """Processes results. ``running`` is the scheduler's own list; finished requests leave it."""

    config: SimConfig
    cache: Cache
    counters: Counters
    emit: Callable[[Request], None]
    running: list[Request] = field(default_factory=list)

    def tracks(self, rows: list[tuple[Request, int]]) -> Tracks:
        """Which (request, new length) rows of a decode batch cross a track boundary, and into which slot."""
        if not self.config.extra_buffer:
            return {}
        interval = self.config.mamba_track_interval
        return {r.rid: (r.next_track, length) for r, length in rows if length % interval == 0}

    def process(self, launched: Launched) -> None:
        """Take over tokens and scores of every row whose request is still what it was at launch."""
        for i, request in enumerate(launched.requests):
            if request.finish is not None or request.retractions != launched.epochs[i]:
                continue
            sampled = launched.result.sampled[i]
            chunk = launched.chunks[i] if launched.chunks else None
            prefill = chunk is not None and not chunk.decode
            if prefill:
                self._take_inputs(request, launched.result.inputs[i], last=sampled is not None)
            if sampled is None:
                continue  # unfinished: the chunk goes into the tree before the next one is launched
            request.future.pop(0)
            self.take_token(request, sampled)
            if not prefill:
                self._track(request, launched.tracks)
            if not self.settle(request) and chunk is not None and prefill:
                self.cache.cache_unfinished(request, chunk.end)

    def _track(self, request: Request, tracks: Tracks) -> None:
        """A decode step may have left a checkpoint: remember it, and write the next one to the other slot."""
        if "track-overlap" in self.config.faults:
            # SGLang #29792: read from the request, which the next batch has already moved one token on.
            tracks = self.tracks([(request, request.kv_len)])
        if request.rid in tracks:
            request.last_track, request.last_track_len = tracks[request.rid]
            request.next_track = 1 - request.last_track

    def settle(self, request: Request) -> bool:
        """Finish the request if its last token ends it; report it if somebody is listening.

        True: it finished.
        """
        finish = self._finish_reason(request)
        if finish is not None:
            self.running.remove(request)
            self.cache.cache_finished(request)
            self.finish(request, finish)
            return True
        if request.stream:
            self.emit(request)
        return False

    def finish(self, request: Request, reason: dict[str, Any]) -> None:
        """The request is over."""
        request.finish = reason
        self.counters.finished(request)
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

    def take_token(self, request: Request, sampled: Sampled) -> None:
        """Append a token and its scores."""
        request.output.append(sampled.token)
        if sampled.scores is not None:
            request.output_logprobs.append(sampled.scores.chosen)
            if request.top_logprobs_num > 0:
                request.output_top.append(sampled.scores.top)
            if request.token_ids_logprob is not None:
                request.output_picked.append(sampled.scores.picked)

    def ends(self, request: Request) -> bool:
        """Whether the request's last token ends it."""
        return self._finish_reason(request) is not None

    def _finish_reason(self, request: Request) -> dict[str, Any] | None:
        if request.to_abort:
            return dict(ABORTED)
        sampling, token = request.sampling, request.output[-1]
        if len(request.output) >= sampling.max_new_tokens:
            return {"type": "length", "length": sampling.max_new_tokens}
        if token in sampling.stop_token_ids or (
            token == EOS and not (sampling.ignore_eos and not sampling.texts)
        ):
            return {"type": "stop", "matched": token}
        return None
