"""Trees of SGLang 0.5.17 with one published bug put back, or one fix put in; nothing else changed.

    python3 variants.py SITE OUT      # OUT/bug32555/sglang, OUT/fix34184/sglang, ...

Put OUT/<name> first on PYTHONPATH. With SOAK_PRINT_ROWS set, a server of the last three prints, at each
replay of the full prefill graph, which rows of the track mask are set, and each checkpoint that is cached:

    TRK mode MIXED R 4 bs 2 n 101 -> 128 source None live [(0, 7)] STALE []
    CKPT len 128 slot [7]

``live``: (row, slot) below the batch size, ``STALE``: at or above it, ``source None``: the batch brought no
mask, so that even ``live`` is what an earlier batch left. Printing synchronises: measure nothing then.

Every edit must find its place exactly once, or nothing is written.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

TRACK = "srt/layers/attention/hybrid_linear_attn_backend.py"
PREFILL = "srt/model_executor/runner/prefill_cuda_graph_runner.py"
CACHE = "srt/mem_cache/unified_cache/components/mamba_component.py"
LOADER = "srt/model_loader/weight_utils.py"
MARLIN = "kernels/jit/csrc/gemm/marlin/gptq_marlin.cuh"
_CLEAR = '                s["orig_seq_lens"][bs:r].zero_()\n'
_REFRESHED = "        # Refresh the static buffer the captured graph reads from.\n"
_COMMIT = "        assert params.mamba_value is not None\n        if is_new_leaf:\n"

Swap = tuple[str, str]
Edits = tuple[tuple[str, tuple[Swap, ...]], ...]

_FIX_34184: Swap = (
    _CLEAR,
    _CLEAR + '                for name in ("mamba_track_mask", "mamba_track_indices"):\n'
    "                    if self.buffer_registry.has_slot(name):\n"
    "                        self.buffer_registry.get_slot(name).buffer[bs:r].zero_()\n",
)
_FIX_MIXED = (
    "        if self._is_full_backend and forward_batch.mamba_track_mask is None:\n"
    '            for name in ("mamba_track_mask", "mamba_track_indices"):\n'
    "                if self.buffer_registry.has_slot(name):\n"
    "                    self.buffer_registry.get_slot(name).buffer[: self._capture_req_slots].zero_()\n"
)
_PRINT_ROWS = (
    '        if __import__("os").environ.get("SOAK_PRINT_ROWS") and self._is_full_backend:\n'
    '            mask = self.buffer_registry.get_slot("mamba_track_mask").buffer.tolist()\n'
    '            slots = self.buffer_registry.get_slot("mamba_track_indices").buffer.tolist()\n'
    "            rows = self._capture_req_slots\n"
    "            print(\n"
    '                "TRK mode", forward_batch.forward_mode.name, "R", rows, "bs", bs,\n'
    '                "n", num_tokens, "->", static_num_tokens, "source",\n'
    '                None if forward_batch.mamba_track_mask is None else "batch",\n'
    '                "live", [(i, slots[i]) for i in range(bs) if mask[i]],\n'
    '                "STALE", [(i, slots[i]) for i in range(bs, rows) if mask[i]], flush=True,\n'
    "            )\n"
)
_PRINT_CHECKPOINT: Swap = (
    _COMMIT,
    "        assert params.mamba_value is not None\n"
    "        stored = is_new_leaf or node.component_data[self.component_type].value is None\n"
    '        if stored and __import__("os").environ.get("SOAK_PRINT_ROWS"):\n'
    "            print(\n"
    '                "CKPT len", None if params.key is None else len(params.key),\n'
    '                "slot", params.mamba_value.tolist(), flush=True,\n'
    "            )\n"
    "        if is_new_leaf:\n",
)


def _after_refresh(*added: str) -> Swap:
    return _REFRESHED, "".join(added) + _REFRESHED


VARIANTS: dict[str, Edits] = {
    "bug32555": (
        (
            TRACK,
            (
                (
                    "track_buf = self.mamba_track_indices_buf[:bs]",
                    "track_buf = self.mamba_track_indices_buf",
                ),
                (
                    "track_buf.copy_(self._translate_mamba_indices(mamba_track_indices[:bs]))",
                    "track_buf[: len(mamba_track_indices)].copy_(\n"
                    "                    self._translate_mamba_indices(mamba_track_indices)\n"
                    "                )",
                ),
            ),
        ),
    ),
    "fix34184": ((PREFILL, (_FIX_34184,)),),
    # as released, with the rows printed: shows a stale row at work
    "released-rows": ((PREFILL, (_after_refresh(_PRINT_ROWS),)), (CACHE, (_PRINT_CHECKPOINT,))),
    # #34184 fixed, with the rows printed: what is left is the mixed batch, stale below its size
    "rows-printed": ((PREFILL, (_FIX_34184, _after_refresh(_PRINT_ROWS))), (CACHE, (_PRINT_CHECKPOINT,))),
    # besides #34184, rows of a batch without a mask cleared: the candidate's cure, to tell cause from company
    "mixed-cured": (
        (PREFILL, (_FIX_34184, _after_refresh(_FIX_MIXED, _PRINT_ROWS))),
        (CACHE, (_PRINT_CHECKPOINT,)),
    ),
}

# Most of what the first start compiles are kernels of other weight formats, which no model here calls.
MARLIN_OF_FP4_ALONE: tuple[Swap, ...] = (
    (
        "  COMMON_GET_IF(host::kU4)\n  COMMON_GET_IF(host::kU4B8)\n  COMMON_GET_IF(host::kU8B128)\n\n",
        "",
    ),
    (
        "  BIGGROUP_GET_IF(host::kFE4M3fn)\n\n  ACT_GET_IF(host::kU4B8)\n  ACT_GET_IF(host::kU8B128)\n\n",
        "",
    ),
)


def edited(text: str, swaps: Sequence[Swap], where: str) -> str:
    """The text with every swap made. Raises SystemExit if one does not find its place exactly once."""
    for old, new in swaps:
        if text.count(old) != 1:
            raise SystemExit(f"{where}: {text.count(old)} places for {old!r}, one is wanted")
        text = text.replace(old, new)
    return text


def make_random_weights_visible(site: Path) -> None:
    """Append ``dummy_weights.py`` to the loader, once: the server's own dummy weights are too small."""
    loader, mark = site / "sglang" / LOADER, "# soak: random weights\n"
    text = loader.read_text()
    if mark not in text:
        loader.write_text(text + "\n" + mark + Path(__file__).with_name("dummy_weights.py").read_text())


def leave_out_marlin_of_other_formats(site: Path) -> None:
    """Of the Marlin kernels, which are compiled on the first start, keep those of FP4, once."""
    source = site / "sglang" / MARLIN
    text = source.read_text()
    if MARLIN_OF_FP4_ALONE[0][0] in text:
        source.write_text(edited(text, MARLIN_OF_FP4_ALONE, MARLIN))


def main(site: Path, out: Path) -> None:
    """The loader and the Marlin source of ``site``, and every variant."""
    texts = {
        name: {
            file: edited((site / "sglang" / file).read_text(), swaps, f"{name}: {file}")
            for file, swaps in edits
        }
        for name, edits in VARIANTS.items()
    }
    make_random_weights_visible(site)
    leave_out_marlin_of_other_formats(site)
    for name, files in texts.items():
        shutil.copytree(site / "sglang", out / name / "sglang", dirs_exist_ok=True)
        for file, text in files.items():
            (out / name / "sglang" / file).write_text(text)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:3]))
