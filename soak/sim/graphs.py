"""Captured graphs: static buffers that a replay reads in full, live rows or not.

A prefill graph is captured per token count with a fixed number of request rows; a decode graph per batch
size. The buffers are allocated once and keep what the last replay left, so whatever the refresh does not
overwrite is read again. The refresh is therefore the whole correctness of a replay, and the place where
SGLang #34184 and #32555 live.
"""

from __future__ import annotations

import numpy as np

from soak.sim.config import SimConfig
from soak.sim.inputs import DecodeInputs, ExtendInputs
from soak.sim.numerics import F64, I64

PER_TOKEN = ("input_ids", "positions", "out_slots", "noise", "token_rows")
CLEARED_PER_ROW = (
    "req_rows",
    "prefix_lens",
    "extend_lens",
    "state_slots",
    "initial_slots",
    "window_slots",
    "has_initial_state",
    "short_initial_state",
    "track_lens",
    "track_states",
    "lora",
)


def static_extend(tokens: int, rows: int) -> ExtendInputs:
    """Buffers for ``tokens`` tokens and ``rows`` request rows, all zero."""

    def ints(n: int) -> I64:
        return np.zeros(n, np.int64)

    return ExtendInputs(
        live=0,
        input_ids=ints(tokens),
        positions=ints(tokens),
        out_slots=ints(tokens),
        noise=np.zeros(tokens),
        token_rows=ints(tokens),
        req_rows=ints(rows),
        prefix_lens=ints(rows),
        extend_lens=ints(rows),
        extend_start=ints(rows),
        state_slots=ints(rows),
        initial_slots=ints(rows),
        window_slots=ints(rows),
        has_initial_state=np.zeros(rows, bool),
        short_initial_state=np.zeros(rows, bool),
        track_mask=np.zeros(rows, bool),
        track_indices=ints(rows),
        track_lens=ints(rows),
        track_states=ints(rows),
        lora=ints(rows),
    )


def static_decode(rows: int) -> DecodeInputs:
    """Buffers for ``rows`` rows, all zero."""
    fields = ("input_ids", "seq_lens", "out_slots", "req_rows", "state_slots", "track_indices", "lora")
    integers = {name: np.zeros(rows, np.int64) for name in fields}
    return DecodeInputs(live=0, track_mask=np.zeros(rows, bool), **integers)


class PrefillGraphs:
    """Prefill graphs of every bucket, over one set of buffers."""

    def __init__(self, config: SimConfig) -> None:
        self._buckets = sorted(config.prefill_graph_buckets) if config.prefill_graph else []
        self._rows = config.graph_rows
        self.buffers = static_extend(self._buckets[-1] if self._buckets else 0, self._rows)
        self._clear_track_rows = "stale-track-rows" not in config.faults
        # SGLang #34043: with speculative decoding on, the track buffers were left out when the
        # graph was captured.
        self._tracks_captured = not (config.spec_draft_tokens and "spec-untracked" in config.faults)

    def bucket(self, batch: ExtendInputs) -> int | None:
        """The graph a batch would replay, in tokens.

        None: it runs eager. Small batches are not worth the padding.
        """
        n = len(batch.input_ids)
        if batch.live > self._rows:
            return None
        fitting = next((b for b in self._buckets if b >= n), None)
        return fitting if fitting is not None and fitting <= 2 * n else None

    def load(self, batch: ExtendInputs, bucket: int) -> ExtendInputs:
        """Refresh the static buffers from ``batch`` and hand out the views a replay reads."""
        static, n, live = self.buffers, len(batch.input_ids), batch.live
        for name in PER_TOKEN:
            buffer = getattr(static, name)
            buffer[:n] = getattr(batch, name)
            buffer[n:bucket] = 0
        for name in (*CLEARED_PER_ROW, "extend_start", "track_mask", "track_indices"):
            getattr(static, name)[:live] = getattr(batch, name)
        for name in CLEARED_PER_ROW:
            getattr(static, name)[live:] = 0
        static.extend_start[live:] = n
        if self._clear_track_rows:
            # SGLang #34184: without these two lines a row past the live batch still says "track", into the
            # slot of the request that had the row last, and this replay's window goes there.
            static.track_mask[live:] = False
            static.track_indices[live:] = 0
        track_mask = static.track_mask if self._tracks_captured else np.zeros(self._rows, bool)
        views = {name: getattr(static, name)[:bucket] for name in PER_TOKEN}
        rows = {name: getattr(static, name) for name in (*CLEARED_PER_ROW, "extend_start")}
        return ExtendInputs(
            live=live, track_mask=track_mask, track_indices=static.track_indices, **views, **rows
        )


class DecodeGraphs:
    """Decode graphs of every captured batch size, over one set of buffers."""

    FIELDS = ("input_ids", "seq_lens", "out_slots", "req_rows", "state_slots", "track_mask", "lora")

    def __init__(self, config: SimConfig) -> None:
        self._sizes = sorted(config.decode_graph_batch_sizes) if config.decode_graph else []
        largest = self._sizes[-1] if self._sizes else 0
        self.buffers = static_decode(largest)
        self._late_from = max(1, largest // 4) if "late-output-rows" in config.faults else None
        self._output: F64 | None = None
        self._hand_out_all = "stale-track-tail" in config.faults

    def size(self, batch: DecodeInputs) -> int | None:
        """The captured batch size a batch is padded to; None: it runs eager."""
        return next((s for s in self._sizes if s >= batch.live), None)

    def load(self, batch: DecodeInputs, size: int) -> DecodeInputs:
        """Refresh the first ``size`` rows and hand out the views a replay reads.

        Padding rows point at the dummies.
        """
        static, live = self.buffers, batch.live
        for name in (*self.FIELDS, "track_indices"):
            buffer = getattr(static, name)
            buffer[:live] = getattr(batch, name)
            buffer[live:size] = 1 if name == "seq_lens" else 0
        views = {name: getattr(static, name)[:size] for name in self.FIELDS}
        # SGLang #32555: handing out the whole buffer instead of its first ``size`` entries; the state save
        # takes the last ``size`` of what it is given, and gets entries that an earlier replay left.
        indices = static.track_indices if self._hand_out_all else static.track_indices[:size]
        return DecodeInputs(live=live, track_indices=indices, **views)

    def output(self, hidden: F64) -> F64:
        """What a replay's hidden states, shape (size, hidden), are handed out as."""
        if self._late_from is None:
            return hidden
        # Rows past the bound are read from the output buffer before this replay has written there: each is
        # what the last replay left in its place. Keys, values and states of the row are all its own.
        if self._output is None:
            self._output = np.zeros((len(self.buffers.input_ids), hidden.shape[1]))
        out = hidden.copy()
        out[self._late_from :] = self._output[self._late_from : len(hidden)]
        self._output[: len(hidden)] = hidden
        return out
