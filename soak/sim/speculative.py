"""Toy speculative decoding: drafts looked up in the request's own text, verified in one pass.

A draft continues an earlier occurrence of the last two tokens. Verification scores the drafts like a prefill,
keeps the states in between, and commits the state after the last accepted token. What comes out is exactly
what plain decoding would have said; only the way there differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.sim.batch import DECODE_NOISE, Chunk, build_extend
from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.inputs import ExtendInputs, Kept
from soak.sim.numerics import F64, I64
from soak.sim.request import Request
from soak.sim.results import Results
from soak.sim.runner import ForwardResult, Runner


def draft(ids: I64, tokens: int) -> I64:
    """Up to ``tokens`` ids that followed the last earlier occurrence of the final pair of ``ids``.

    Maybe none.
    """
    if len(ids) < 3:
        return np.empty(0, np.int64)
    same = np.flatnonzero((ids[:-2] == ids[-2]) & (ids[1:-1] == ids[-1]))
    if not len(same):
        return np.empty(0, np.int64)
    whole = same[same + 2 + tokens <= len(ids)]
    after = int(whole[-1] if len(whole) else same[-1]) + 2
    return ids[after : after + tokens]


@dataclass(frozen=True, slots=True)
class Verifier:
    """Runs speculative steps for the scheduler."""

    config: SimConfig
    cache: Cache
    runner: Runner
    results: Results

    def step(self, requests: list[Request]) -> ForwardResult:
        """Draft, verify and settle every request; each gets at least one token."""
        drafts = [draft(r.ids, self.config.spec_draft_tokens) for r in requests]
        chunks = [
            Chunk(r, r.seq_len - 1, r.seq_len + len(d), drafted=tuple(d.tolist()))
            for r, d in zip(requests, drafts, strict=True)
        ]
        batch = build_extend(self.config, chunks, self.cache.table)
        batch.kept = Kept()
        batch.noise[:] = DECODE_NOISE
        hidden, result = self.runner.verify(batch)
        for row, (request, chunk) in enumerate(zip(requests, chunks, strict=True)):
            first = int(batch.extend_start[row])
            self._accept(request, chunk, batch, row, hidden[first : first + chunk.end - chunk.start])
        return result

    def _accept(self, request: Request, chunk: Chunk, batch: ExtendInputs, row: int, hidden: F64) -> None:
        before, accepted, drafted = request.seq_len - 1, 0, chunk.drafted or ()
        while True:
            sampled = self.runner.sample_one(hidden[accepted], request)
            self.results.take_token(request, sampled)
            accepted += 1
            guessed = accepted <= len(drafted) and drafted[accepted - 1] == sampled.token
            if not guessed or self.results.ends(request):
                break
        request.kv_len = before + accepted
        if self.config.hybrid:
            self._commit(request, batch, row, before, accepted)
        self.results.settle(request)

    def _commit(self, request: Request, batch: ExtendInputs, row: int, before: int, accepted: int) -> None:
        """Working state after the accepted tokens, and a checkpoint if they cross a track boundary."""
        model = self.runner.model
        interval = self.config.mamba_track_interval
        boundary = (before + accepted) // interval * interval
        if self.config.extra_buffer and boundary > before:
            slot = request.ping_pong[request.next_track]
            model.commit(batch, row, boundary - before, slot)
            request.last_track, request.last_track_len = request.next_track, boundary
            request.next_track = 1 - request.next_track
        model.commit(batch, row, accepted, request.state_slot)
