"""Where a hybrid model's prefill leaves states, worked out from where requests resumed. Pure arithmetic.

SGLang does not name the grid: with ``no_buffer`` states are kept at chunk ends and request ends, with
``extra_buffer`` at resume + floor(extend / c) * c for a c that depends on model and page. Prompts of
2^k - 1 tokens make the answer unique among powers of two: they resume at 2^k - c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resumption:
    """A prompt of ``written`` tokens was prefilled in quiet from nothing; one that leaves it only at its
    last token resumed at ``cached`` tokens."""

    written: int
    cached: int


def probing_length(limit: int) -> int:
    """The greatest 2^k - 1 below ``limit``, at least 1."""
    return max(1, (1 << (max(limit, 2).bit_length() - 1)) - 1)


def attention_only(seen: Sequence[Resumption], page: int) -> bool:
    """Whether every prompt resumed at its last full page before the token that differs: no states needed."""
    return all(s.cached == (s.written - 1) // page * page for s in seen)


def state_grid(seen: Sequence[Resumption], chunk: int, hint: int | None = None) -> int | None:
    """The distance in tokens between states written by prefill, None if nothing seen allows one.

    A grid g explains a resumption if the state at the last multiple of g within each chunk, and at chunk
    ends, gives ``cached``. ``hint``: what the server calls its state chunk, taken if it explains all.
    Otherwise the chunk itself, if nothing resumed inside one; then the smallest power of two that explains
    all.
    """
    useful = [s for s in seen if s.cached > 0]
    if not useful:
        return None
    powers = [1 << k for k in range(1, 24)]
    for grid in [*([hint] if hint else []), chunk, *powers]:
        if grid <= chunk and all(_explains(grid, s, chunk) for s in seen):
            return grid
    return None


def _explains(grid: int, seen: Resumption, chunk: int) -> bool:
    """Whether states every ``grid`` tokens since the start of each chunk put the resumption where it was."""
    ends, rest = divmod(seen.written, chunk)
    last = ends * chunk + rest // grid * grid
    if last >= seen.written:  # the state at the very end lies beyond the token that differs
        last = (seen.written - 1) // chunk * chunk
    return seen.cached == last
