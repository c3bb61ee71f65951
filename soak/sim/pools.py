"""Memory of the simulated device: token slots with keys and values, request rows, recurrent state slots.

Arrays are allocated once and never cleared: a freed slot keeps its bytes until somebody writes them, as on a
GPU. Slot 0 and request row 0 of every pool are the dummies that padding writes to and reads from. Nothing
here decides who owns a slot.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from soak.sim.numerics import F32, F64, I64


class OutOfSlots(RuntimeError):
    """A pool has fewer free slots than asked for, even after eviction."""


class FreeList:
    """Slots 1..n of a pool, handed out lowest-freed-last (a stack), as a plain allocator would."""

    def __init__(self, n: int) -> None:
        self.size = n
        self._free = list(range(n, 0, -1))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, n: int) -> list[int]:
        """``n`` slots. Raises OutOfSlots, taking nothing."""
        if n > len(self._free):
            raise OutOfSlots(f"{n} slots asked for, {len(self._free)} of {self.size} free")
        if n == 0:
            return []
        taken = self._free[-n:][::-1]
        del self._free[-n:]
        return taken

    def give(self, slots: Iterable[int]) -> None:
        """Take slots back."""
        self._free.extend(slots)


class TokenPool:
    """Keys (float32) and values (float64) of every attention layer, per token slot, in pages of
    ``page_size``.

    keys, values: shape (layers, slots, heads * head_dim). A slot's page is slot // page_size; page 0 is the
    dummy.
    """

    def __init__(self, layers: int, tokens: int, page_size: int, width: int) -> None:
        self.page_size = page_size
        self.pages = FreeList(tokens // page_size)
        slots = (tokens // page_size + 1) * page_size
        self.keys: F32 = np.zeros((layers, slots, width), np.float32)
        self.values: F64 = np.zeros((layers, slots, width))

    @property
    def size(self) -> int:
        """Tokens the pool can hold."""
        return self.pages.size * self.page_size

    @property
    def free_tokens(self) -> int:
        """Tokens in free pages."""
        return len(self.pages) * self.page_size

    def take_pages(self, n: int) -> I64:
        """Slots of ``n`` fresh pages, in order: shape (n * page_size,)."""
        first = np.asarray(self.pages.take(n), np.int64) * self.page_size
        return (first[:, None] + np.arange(self.page_size)).reshape(-1)

    def give(self, slots: I64) -> None:
        """Free the whole pages that ``slots`` lie in (each page once)."""
        if len(slots):
            self.pages.give(int(page) for page in np.unique(slots // self.page_size) if page)


class RequestTable:
    """Request row to token slots: ``slots[row, position]``. Row 0 is the dummy; its slots are all 0."""

    def __init__(self, rows: int, context_len: int) -> None:
        self.rows = FreeList(rows)
        self.slots: I64 = np.zeros((rows + 1, context_len + 64), np.int64)


class StatePool:
    """Recurrent state per slot: the last three inputs of each short convolution, and the SSM state.

    short, conv: shape (slots, 3, channels), oldest input first; ssm: (slots, heads * head_dim * state_dim).
    """

    def __init__(self, slots: int, short_channels: int, conv_channels: int, ssm_width: int) -> None:
        self.free = FreeList(slots)
        self.short: F64 = np.zeros((slots + 1, 3, short_channels))
        self.conv: F64 = np.zeros((slots + 1, 3, conv_channels))
        self.ssm: F64 = np.zeros((slots + 1, ssm_width))

    def copy(self, source: int, target: int) -> None:
        """Copy one slot's whole state over another's."""
        self.short[target] = self.short[source]
        self.conv[target] = self.conv[source]
        self.ssm[target] = self.ssm[source]
