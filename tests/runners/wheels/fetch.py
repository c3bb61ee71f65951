"""Published wheels of SGLang, down to the files that the checks read, kept in a folder that git ignores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
CACHE = Path(os.environ.get("SOAK_WHEELS") or ROOT / "build" / "sglang-wheels")
_KEPT = (
    "srt/model_executor/runner/prefill_cuda_graph_runner.py",
    "srt/model_executor/cuda_graph_buffer_registry.py",
    "srt/layers/attention/hybrid_linear_attn_backend.py",
    "srt/managers/schedule_batch.py",
    "srt/managers/scheduler_components/batch_result_processor.py",
    "srt/mem_cache/unified_cache/components/swa.py",
    "srt/mem_cache/unified_cache/components/swa_component.py",
    "srt/mem_cache/unified_cache_components/swa_component.py",
    "srt/disaggregation/decode.py",
    "srt/environ.py",
    "srt/server_args.py",
)
_KEPT_FOLDERS = ("srt/arg_groups/",)
_OTHER_PYTHON = (
    "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none",
    "--platform", "manylinux_2_34_x86_64", "--platform", "any",
)  # fmt: skip
"""For an interpreter that no wheel is made for: nothing of it is run here."""


def release(version: str) -> Path:
    """A folder with what is kept of this release's wheel. Raises AssertionError if it cannot be had."""
    folder = CACHE / version
    stamp, kept = folder / "complete", "\n".join((*_KEPT, *_KEPT_FOLDERS))
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == kept):
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            made = Path(scratch) / version
            _unpack(_download(version, Path(scratch)), made)
            (made / stamp.name).write_text(kept, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    return folder


def _download(version: str, to: Path) -> Path:
    said = ""
    for more in ((), _OTHER_PYTHON):
        words = ["download", "--no-deps", "--only-binary", ":all:", "-q", "--disable-pip-version-check"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, *more, "--dest", str(to), f"sglang=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        wheels = list(to.glob("sglang-*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
        said = done.stderr.strip()
    raise AssertionError(
        f"the wheel of SGLang {version} cannot be had, and these tests are about nothing else. pip needs a "
        f"package index, or a folder with earlier downloads in SOAK_WHEELS ({CACHE}). pip said:\n{said}"
    )


def _unpack(wheel: Path, to: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        kept = [
            name
            for name in archive.namelist()
            if (inner := name.removeprefix("sglang/")) in _KEPT
            or inner.startswith(_KEPT_FOLDERS)
            or name.endswith(".dist-info/METADATA")
        ]
        archive.extractall(to, kept)
