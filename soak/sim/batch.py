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
from soak.sim.weights import KERNEL

RESUME_NOISE = 1.3  # extra relative noise of the first extend after a hit, in units of an ordinary pass
DECODE_NOISE = 1.3  # of a decode step


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, end) of a request, to be computed in one pass.

    ``decode`` marks a decode row in a mixed batch; ``drafted`` are guesses that follow the last token, to be
    verified.
    """

    request: Request
    start: int
    end: int
    decode: bool = False
    drafted: tuple[int, ...] | None = None

    @property
    def last(self) -> bool:
        """Whether this completes what is known of the request, so that a token comes out."""
        return self.decode or self.end == self.request.seq_len

    @property
    def ids(self) -> I64:
        """The tokens to compute."""
        if self.decode or self.drafted is not None:
            return np.asarray([self.request.last_token, *(self.drafted or ())], np.int64)
        return self.request.ids[self.start : self.end]


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
        tracks = [_track(config, c) for c in chunks]
        if "mixed-chunk-drop" in config.faults and any(c.decode for c in chunks):
            # SGLang #39342: merging the decode batch in sets the three track fields to None for all rows.
            tracks = [(False, 0, 0)] * rows
    extend_start = np.concatenate([[0], np.cumsum(lens)[:-1]]).astype(np.int64)
    has_state = np.asarray([r.has_state for r in requests], bool)
    initial_slots = _ints([r.initial_slot for r in requests])
    noise = [DECODE_NOISE if c.decode else RESUME_NOISE if c.request.resumed else 0.0 for c in chunks]
    return ExtendInputs(
        live=rows,
        input_ids=np.concatenate([_input_ids(config, c) for c in chunks]),
        positions=np.concatenate([np.arange(c.start, c.end) for c in chunks]),
        out_slots=np.concatenate([table.slots[c.request.row, c.start : c.end] for c in chunks]),
        noise=np.repeat(noise, lens),
        token_rows=np.repeat(np.arange(rows), lens),
        req_rows=_ints([r.row for r in requests]),
        prefix_lens=starts,
        extend_lens=lens,
        extend_start=extend_start,
        state_slots=_ints([r.state_slot for r in requests]),
        initial_slots=initial_slots,
        window_slots=_window_slots(config, requests, lens),
        has_initial_state=has_state,
        # SGLang #24717: the mask is not passed on, so a fresh request begins with what its slot last held.
        short_initial_state=np.ones(rows, bool) if "slot-reuse-initial-state" in config.faults else has_state,
        track_mask=np.asarray([t[0] for t in tracks], bool),
        track_indices=_ints([t[1] for t in tracks]),
        track_lens=_ints([t[2] for t in tracks]),
        track_states=_track_states(config, extend_start, _ints([t[2] for t in tracks])),
        lora=_ints([r.lora for r in requests]),
    )


def _input_ids(config: SimConfig, chunk: Chunk) -> I64:
    """The tokens of a chunk, as the model is given them."""
    request, size = chunk.request, config.chunked_prefill_size
    whole = size != -1 and not request.cached and len(request.prompt) >= 2 * size
    if "chunk-boundary-slip" not in config.faults or not whole or chunk.drafted is not None or chunk.decode:
        return chunk.ids
    # The second chunk's ids are staged one place late: each of its tokens is the one before it. Whoever
    # prefills so many tokens in one request gets that, and leaves it in the cache.
    late = np.arange(chunk.start, chunk.end)
    late -= (late >= size) & (late < 2 * size)
    slipped: I64 = request.ids[late]
    return slipped


def _track(config: SimConfig, chunk: Chunk) -> tuple[bool, int, int]:
    if chunk.drafted is not None:
        return False, 0, 0  # committed after verification
    if chunk.decode:
        return track_decode(config, chunk.request, chunk.end)
    return track_prefill(config, chunk.request, chunk.start, chunk.end)


def _window_slots(config: SimConfig, requests: list[Request], lens: I64) -> I64:
    """Where each row's convolution window goes: its working slot."""
    slots = _ints([r.state_slot for r in requests])
    if "short-tail-chunk" in config.faults:
        # vLLM #56196: a chunk shorter than the window is shifted in where it was read, the shared checkpoint.
        slots = np.where(lens < KERNEL - 1, _ints([r.initial_slot for r in requests]), slots)
    return slots


def _track_states(config: SimConfig, extend_start: I64, track_lens: I64) -> I64:
    """The batch's token whose SSM state a row's checkpoint takes."""
    if "multi-prefill-offset" in config.faults:
        # SGLang #31833: the scan keeps states per chunk of the whole batch laid end to end; counting chunks
        # from the one the row begins in is right only for a row that begins on the chunk grid.
        chunk = config.state_chunk
        ends = (extend_start // chunk + track_lens // chunk) * chunk
    else:
        ends = extend_start + track_lens
    states: I64 = np.maximum(ends - 1, 0)
    return states


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
