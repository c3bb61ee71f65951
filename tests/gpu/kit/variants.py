"""Trees of SGLang 0.5.17 with one published bug put back, or one fix put in; nothing else changed.

    python3 variants.py SITE OUT      # OUT/bug32555/sglang, OUT/fix34184/sglang

Put OUT/<name> first on PYTHONPATH.

Every edit must find its place exactly once, or nothing is written.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

TRACK = "srt/layers/attention/hybrid_linear_attn_backend.py"
PREFILL = "srt/model_executor/runner/prefill_cuda_graph_runner.py"
LOADER = "srt/model_loader/weight_utils.py"
_CLEAR = '                s["orig_seq_lens"][bs:r].zero_()\n'

VARIANTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "bug32555": (
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
    "fix34184": (
        PREFILL,
        (
            (
                _CLEAR,
                _CLEAR + '                for name in ("mamba_track_mask", "mamba_track_indices"):\n'
                "                    if self.buffer_registry.has_slot(name):\n"
                "                        self.buffer_registry.get_slot(name).buffer[bs:r].zero_()\n",
            ),
        ),
    ),
}


def edited(text: str, swaps: tuple[tuple[str, str], ...], where: str) -> str:
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


def main(site: Path, out: Path) -> None:
    """The loader of ``site`` and every variant."""
    make_random_weights_visible(site)
    for name, (file, swaps) in VARIANTS.items():
        text = edited((site / "sglang" / file).read_text(), swaps, f"{name}: {file}")
        shutil.copytree(site / "sglang", out / name / "sglang", dirs_exist_ok=True)
        (out / name / "sglang" / file).write_text(text)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:3]))
