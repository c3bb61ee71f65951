"""Hand-made minimal packages for the checks to read: our own words, the shape of what the checks look for."""

from __future__ import annotations

import textwrap
from pathlib import Path

from soak.runners import cache_keys, decode_tail, graph_rows, tracking
from soak.runners.edits import EDITS
from soak.runners.site import Site


def site(root: Path, files: dict[str, str], version: str = "") -> Site:
    """A package with these files, and metadata beside it if a version is given."""
    package = root / "sglang"
    (package / "srt").mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")
    if version:
        metadata = root / f"sglang-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return Site.at(root)


def rows(clearing: str, outside: str = "") -> dict[str, str]:
    """A prefill runner whose refresh clears lengths past the batch, and whatever ``clearing`` does."""
    body = textwrap.indent(textwrap.dedent(clearing), " " * 16)
    more = textwrap.indent(textwrap.dedent(outside), " " * 4)
    source = f"""\
TRACKED = ("mamba_track_mask", "mamba_track_indices")


class Runner:
    def __init__(self, registry):
        self.registry = registry

    def refresh(self, batch):
        if self.static is not None:
            n = batch.batch_size
            static = self.static
            static["req_pool_indices"][:n].copy_(batch.req_pool_indices)
            if self.whole_graph and n < self.most_rows:
                top = self.most_rows
                static["extend_seq_lens"][n:top].zero_()
                static["extend_prefix_lens"][n:top].zero_()
                static["req_pool_indices"][n:top].zero_()
{body}
        return self.registry.get_slot("mamba_track_mask")

{more}
"""
    return {graph_rows.MODULE: source}


def decode(taking: str, handing: str = "rows", outside: str = "") -> dict[str, str]:
    """A backend that copies given indices into its buffer by ``taking`` and hands out ``handing``."""
    body = textwrap.indent(textwrap.dedent(taking), " " * 12)
    more = textwrap.indent(textwrap.dedent(outside), " " * 4)
    source = f"""\
class Backend:
    def replayed(self, n, slots, mamba_track_indices=None):
        rows = None
        if mamba_track_indices is not None:
{body}
        return Facts(slots=self.slots[n - 1], mamba_track_indices={handing})

    def prepare(self, batch):
        self.facts = self.replayed(batch.batch_size, batch.slots, mamba_track_indices=batch.tracked)

{more}


class Taker(Backend):
    def forward(self, facts):
        save(facts.mamba_track_indices[-facts.count :])
"""
    return {decode_tail.MODULE: source}


def releasable() -> dict[str, str]:
    """Two files that hold the places of both edits, and are otherwise our own."""
    rows_edit, tail_edit = EDITS["stale-track-rows"], EDITS["stale-track-tail"]
    first = f"""\
class Runner:
    def refresh(self, forward_batch):
        if self.static is not None:
            bs = forward_batch.batch_size
            s = self.static
            if bs < self.most_rows:
                r = self.most_rows
                s["extend_seq_lens"][bs:r].zero_()
                s["extend_prefix_lens"][bs:r].zero_()
{rows_edit.anchor}
        return self.buffer_registry
"""
    second = f"""\
class Backend:
    def replayed(self, bs, mamba_track_indices=None):
        track_buf = None
        if mamba_track_indices is not None:
{tail_edit.anchor}
        return Facts(mamba_track_indices=track_buf)


class Taker(Backend):
    def forward(self, facts):
        save(facts.mamba_track_indices[-facts.count :])
"""
    return {rows_edit.path: first, tail_edit.path: second}


PREFILL, RESULTS, BATCH = tracking.PREFILL, tracking.RESULTS, tracking.BATCH
DECODE, ENVIRON = cache_keys.DECODE, cache_keys.ENVIRON
WINDOW = "srt/mem_cache/unified_cache/components/swa.py"
