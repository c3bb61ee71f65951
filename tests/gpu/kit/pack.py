"""Pack an installed SGLang for a GPU machine that has CUDA, torch and triton, and no network.

    python3.12 -m venv VENV && VENV/bin/pip install sglang==0.5.17     # about 9 GB
    python3 pack.py VENV THERE.txt OUT                                 # names of the packages the machine has

writes OUT/base.tar.xz (the server with Triton attention, kernels for sm_90 alone) and OUT/fa4.tar.xz (what
``--attention-backend fa4`` needs besides). Unpack each into a folder of its own and start the server with
PYTHONPATH=FA4/nvidia_cutlass_dsl/dsl_packages:FA4:BASE. The archives are never committed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

NOT_NEEDED = {
    "tilelang", "tokenspeed-triton", "modelscope", "anthropic", "z3-solver", "datasets", "jedi",
    "torchcodec", "nvidia-cudnn-frontend", "pycryptodomex", "cryptography", "pycountry",
    "cuda-tile", "numba", "llvmlite", "mistral-common", "sgl-deep-gemm", "flash-attn-4", "torchao",
    "nvshmem4py-cu13", "timm", "openai-harmony", "llguidance", "outlines-core", "pip",
    "airportsdata", "nccl4py",
}  # fmt: skip
FA4 = {
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-base",
    "nvidia-cutlass-dsl-libs-core",
    "nvidia-cutlass-dsl-libs-cu13",
    "quack-kernels",
}
OTHER_CHIPS = [
    "__pycache__", "*.pyi", "flash_ops.abi3.so", "flashmla_ops*", "infllm_ops*", "sm100", "multimodal_gen",
    "libxgrammar.a", "cu12", "*_cutlass_ir.cu12*",
]  # fmt: skip
SOURCES_OF_KERNELS = (
    "cutlass/examples", "cutlass/python", "cutlass/tools", "cutlass/test", "cccl/python", "spdlog/scripts",
)  # fmt: skip


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def pack(site: Path, folder: Path, wanted: Callable[[str], bool]) -> Path:
    """Copy the wanted distributions of ``site`` into ``folder`` and compress it; the archive's path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for distribution in metadata.distributions(path=[str(site)]):
        if not wanted(plain(distribution.metadata["Name"])):
            continue
        tops = {str(f).split("/")[0] for f in distribution.files or [] if not str(f).startswith("..")}
        for top in tops - {"bin", "__pycache__", "nvidia"}:
            source = site / top
            if source.is_dir():
                ignored = shutil.ignore_patterns(*OTHER_CHIPS)
                shutil.copytree(source, folder / top, dirs_exist_ok=True, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder / top)
    for name in SOURCES_OF_KERNELS:
        shutil.rmtree(folder / "flashinfer/data" / name, ignore_errors=True)
    for library in folder.rglob("*.so*"):
        if library.stat().st_size > 1 << 20:
            subprocess.run(["strip", "--strip-unneeded", library], check=False)
    archive = folder.with_name(folder.name + ".tar.xz")
    with archive.open("wb") as out:
        tar = subprocess.Popen(["tar", "-C", str(folder), "-cf", "-", "."], stdout=subprocess.PIPE)
        subprocess.run(["xz", "-T2", "-6"], stdin=tar.stdout, stdout=out, check=True)
        if tar.wait():
            raise SystemExit(f"tar failed on {folder}")
    return archive


def main(venv: Path, there: Path, out: Path) -> None:
    """Both archives."""
    site = next((venv / "lib").glob("python3.*")) / "site-packages"
    installed = {plain(line) for line in there.read_text().splitlines() if line.strip()}
    installed -= {"transformers", "tokenizers"}  # the machine may have versions the server does not work with
    left_out = installed | NOT_NEEDED | FA4
    for name, wanted in (
        ("base", lambda n: n not in left_out and not n.startswith("nvidia-")),
        ("fa4", lambda n: n in FA4),
    ):
        archive = pack(site, out / name, wanted)
        print(name, archive.stat().st_size >> 20, "MiB")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
