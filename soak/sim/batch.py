"""From requests to the arrays of one forward pass, and the rule for where a prefill leaves its checkpoint.

A batch names requests and token ranges; building it reads the requests and the row table and changes only the
requests' own tracking fields, as SGLang's ``prepare_for_extend`` and ``prepare_for_decode`` do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.sim.config import SimConfig
from soak.sim.inputs import DecodeInputs, ExtendInputs
from soak.sim.numerics import I64
from soak.sim.pools import RequestTable
from soak.sim.request import Request

RESUME_NOISE = 1.0  # extra relative noise of the first extend after a hit, in units of an ordinary pass
DECODE_NOISE = 1.0  # of a decode step


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, end) of a request, to be computed in one pass.

    ``decode`` marks a decode row in a mixed batch.
    """

    request: Request
    start: int
    end: int
    decode: bool = False

    @property
    def last(self) -> bool:
        """Whether this completes what is known of the request, so that a token comes out."""
        return self.end == self.request.seq_len


def track_prefill(config: SimConfig, request: Request, start: int, end: int) -> tuple[bool, int, int]:
    """(mask, state slot, tokens after which) of the checkpoint that extending [start, end) leaves,
    extra_buffer only.

    At start + floor(n / grid) * grid if n reaches the grid; at the branch point instead if it lies inside.
    """
    n, grid = end - start, config.checkpoint_grid
    slot = request.ping_pong[request.next_track]
    if n < grid:
        return False, slot, 0
    length = start + n // grid * grid
    branch = request.branching_len
    if branch is not None and start < branch < end and (branch - start) % config.state_chunk == 0:
        length = branch
    request.last_track = request.next_track
    request.next_track = 1 - request.next_track
    request.last_track_len = length
    return True, slot, length - start


def build_extend(config: SimConfig, chunks: list[Chunk], table: RequestTable) -> ExtendInputs:
    """The arrays of a prefill batch; rows in the order of ``chunks``."""
    rows = len(chunks)
    starts = np.asarray([c.start for c in chunks], np.int64)
    lens = np.asarray([c.end - c.start for c in chunks], np.int64)
    requests = [c.request for c in chunks]
    tracks = [(False, 0, 0)] * rows
    if config.extra_buffer:
        tracks = [
            track_decode(config, c.request, c.end)
            if c.decode
            else track_prefill(config, c.request, c.start, c.end)
            for c in chunks
        ]
    noise = [DECODE_NOISE if c.decode else RESUME_NOISE if c.request.resumed else 0.0 for c in chunks]
    return ExtendInputs(
        live=rows,
        input_ids=np.concatenate([c.request.ids[c.start : c.end] for c in chunks]),
        positions=np.concatenate([np.arange(c.start, c.end) for c in chunks]),
        out_slots=np.concatenate([table.slots[c.request.row, c.start : c.end] for c in chunks]),
        noise=np.repeat(noise, lens),
        token_rows=np.repeat(np.arange(rows), lens),
        req_rows=_ints([r.row for r in requests]),
        prefix_lens=starts,
        extend_lens=lens,
        extend_start=np.concatenate([[0], np.cumsum(lens)[:-1]]).astype(np.int64),
        state_slots=_ints([r.state_slot for r in requests]),
        has_initial_state=np.asarray([r.has_state for r in requests], bool),
        track_mask=np.asarray([t[0] for t in tracks], bool),
        track_indices=_ints([t[1] for t in tracks]),
        track_lens=_ints([t[2] for t in tracks]),
        lora=_ints([r.lora for r in requests]),
    )


def track_decode(config: SimConfig, request: Request, length: int) -> tuple[bool, int, int]:
    """(mask, state slot, 1) of a decode step that makes the sequence ``length`` tokens long."""
    return length % config.mamba_track_interval == 0, request.ping_pong[request.next_track], 1


def build_decode(config: SimConfig, requests: list[Request], table: RequestTable) -> DecodeInputs:
    """The arrays of a decode batch: each request's last token."""
    seq_lens = _ints([r.launched_len for r in requests])
    rows = _ints([r.row for r in requests])
    tracks = [(False, 0, 0)] * len(requests)
    if config.extra_buffer:
        tracks = [track_decode(config, r, r.launched_len) for r in requests]
    return DecodeInputs(
        live=len(requests),
        input_ids=_ints([r.last_token for r in requests]),
        seq_lens=seq_lens,
        out_slots=table.slots[rows, seq_lens - 1],
        req_rows=rows,
        state_slots=_ints([r.state_slot for r in requests]),
        track_mask=np.asarray([t[0] for t in tracks], bool),
        track_indices=_ints([t[1] for t in tracks]),
        lora=_ints([r.lora for r in requests]),
    )


def _ints(values: list[int]) -> I64:
    return np.asarray(values, np.int64)
