"""What one forward pass reads: the arrays a batch is flattened into, eager or from a graph's static buffers.

Names follow SGLang's ForwardBatch. ``n`` tokens are laid end to end, request row after request row; rows past
``live`` exist only in a captured graph, where whatever their buffers hold is read as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from soak.sim.numerics import F64, I64, Bool


@dataclass(slots=True)
class Kept:
    """Intermediate states of a pass whose rows may be accepted only in part (speculative verification).

    windows: (row, pool, inputs seen: the three before and the row's own); states: after each token, (n,
    width).
    """

    windows: list[tuple[int, F64, F64]] = field(default_factory=list)
    states: F64 | None = None


@dataclass(slots=True)
class ExtendInputs:
    """A prefill batch. Per token (n): ids, positions, out_slots, noise. Per request row (R): the rest.

    state_slots: the working slots; initial_slots: where the state before the first new token is (the tree's
    slot in the first extend after a hit); window_slots: where the convolution windows go; has_initial_state
    and short_initial_state: whether there is a state before, as the SSM and as the short convolution are
    told; track_mask: whether the row leaves a checkpoint; track_indices: the state slot it goes to;
    track_lens: after how many of the row's new tokens (1..extend_len) the checkpoint is taken; track_states:
    the batch's token whose SSM state that is; lora: adapter number, 0 = none; kept: see Kept.
    """

    live: int
    input_ids: I64
    positions: I64
    out_slots: I64
    noise: F64
    token_rows: I64
    req_rows: I64
    prefix_lens: I64
    extend_lens: I64
    extend_start: I64
    state_slots: I64
    initial_slots: I64
    window_slots: I64
    has_initial_state: Bool
    short_initial_state: Bool
    track_mask: Bool
    track_indices: I64
    track_lens: I64
    track_states: I64
    lora: I64
    kept: Kept | None = None

    def conv_sources(self) -> I64:
        """Token indices of the three conv inputs each row's checkpoint keeps.

        Shape (R, 3), zero past ``live``.
        """
        first = self.extend_start + self.track_lens - 3
        sources = first[:, None] + np.arange(3)
        sources[self.live :] = 0
        sources[~self.track_mask] = 0
        return sources


@dataclass(slots=True)
class DecodeInputs:
    """A decode batch.

    One token per row. seq_lens include the new token; padding rows point at the dummies.
    """

    live: int
    input_ids: I64
    seq_lens: I64
    out_slots: I64
    req_rows: I64
    state_slots: I64
    track_mask: Bool
    track_indices: I64
    lora: I64
