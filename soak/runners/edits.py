"""The two fixes that can be written into a release that lacks them, as exact edits. Data and text only.

An anchor must stand in the file exactly once, or nothing is written. The code put in is our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from soak.runners import decode_tail, graph_rows

KNOWN_RELEASES = ("0.5.15.post1", "0.5.16", "0.5.17")
"""Releases whose files these edits were tried on."""


class EditRefused(Exception):
    """The file is not the one an edit was written for. The text says which, and what was expected."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``anchor`` by ``replacement`` in one file of the package."""

    path: str
    anchor: str
    replacement: str

    def on(self, source: str) -> str:
        """The edited source. Raises EditRefused unless the anchor stands there exactly once."""
        count = source.count(self.anchor)
        if count != 1:
            first = self.anchor.strip().splitlines()[0]
            raise EditRefused(
                f"{self.path}: the place for the edit ({first!r} and what follows) is there {count} times, "
                "not once"
            )
        return source.replace(self.anchor, self.replacement)


_ROWS_ANCHOR = """\
                s["extend_start_loc"][bs:r].fill_(self.raw_num_tokens)
                s["req_pool_indices"][bs:r].zero_()
                s["orig_seq_lens"][bs:r].zero_()
"""

_ROWS_FIX = (
    _ROWS_ANCHOR
    + """\
                # soak: SGLang #34184. Rows past this batch still name slots of an
                # earlier, wider one, and the graph saves a state for every row
                # whose mask is set: unset them, or a checkpoint is overwritten.
                for track_slot in ("mamba_track_mask", "mamba_track_indices"):
                    if self.buffer_registry.has_slot(track_slot):
                        self.buffer_registry.get_slot(track_slot).buffer[bs:r].zero_()
"""
)

_TAIL_ANCHOR = """\
            track_buf = self.mamba_track_indices_buf
            track_buf[: len(mamba_track_indices)].copy_(
                self._translate_mamba_indices(mamba_track_indices)
            )
"""

_TAIL_FIX = """\
            # soak: SGLang #32555. Only the rows of this (padded) batch are fresh.
            # Whoever takes the last rows of the whole buffer gets stale ones.
            assert (
                len(mamba_track_indices) >= bs
            ), f"{len(mamba_track_indices)} track indices for a batch of {bs}"
            track_buf = self.mamba_track_indices_buf[:bs]
            track_buf.copy_(self._translate_mamba_indices(mamba_track_indices[:bs]))
"""

EDITS: Mapping[str, Edit] = MappingProxyType(
    {
        "stale-track-rows": Edit(graph_rows.MODULE, _ROWS_ANCHOR, _ROWS_FIX),
        "stale-track-tail": Edit(decode_tail.MODULE, _TAIL_ANCHOR, _TAIL_FIX),
    }
)
"""Edits by the name of the fault."""
