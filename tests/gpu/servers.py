"""Real SGLang servers on one GPU or several, started from unpacked trees; standard library only.

Several tiny servers fit on one card. Each is a process group of its own, and is ended with the lab. All keep
what they compile in one folder, ``SOAK_KERNELS`` or ~/.cache/soak-kernels, so that only the first waits.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.warming import asker, flush, warm

MODELS = Path(__file__).with_name("kit") / "models"

FALCON = (
    "--attention-backend", "triton", "--mem-fraction-static", "0.3", "--max-mamba-cache-size", "128",
    "--max-running-requests", "16", "--max-total-tokens", "65536",
    "--mamba-radix-cache-strategy", "extra_buffer", "--mamba-track-interval", "128",
    "--chunked-prefill-size", "512",
)  # fmt: skip
INKLING = (
    "--attention-backend", "fa4", "--page-size", "128", "--mem-fraction-static", "0.3",
    "--max-mamba-cache-size", "128", "--max-running-requests", "16", "--max-total-tokens", "65536",
    "--mamba-radix-cache-strategy", "extra_buffer", "--chunked-prefill-size", "512",
    "--enable-deterministic-inference", "--swa-full-tokens-ratio", "0.8",
    "--cuda-graph-bs-prefill", "128", "256", "512", "--cuda-graph-max-bs", "8",
    # the full prefill graph has chunk // 512 request rows by default: with one, no row can be stale
    "--cuda-graph-config", '{"prefill":{"full_prefill_max_req":4}}',
)  # fmt: skip
NVFP4 = (
    *FALCON, "--disable-prefill-cuda-graph", "--load-format", "safetensors",
    # weight-only 4-bit kernels: before Blackwell, SGLang has no others for NVFP4
    "--quantization", "modelopt_fp4", "--fp4-gemm-backend", "marlin",
)  # fmt: skip
"""For what ``nvfp4_checkpoint.py`` wrote; the path of the folder is the server's model."""
BF16 = (*FALCON, "--disable-prefill-cuda-graph", "--load-format", "safetensors")
"""For the same weights, not quantised."""
COMMON = (
    "--load-format", "dummy", "--skip-tokenizer-init", "--host", "127.0.0.1", "--sampling-backend", "pytorch",
    "--grammar-backend", "none", "--enable-metrics", "--random-seed", "1",
)  # fmt: skip
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""NVLink multicast off, whatever the environment says: it is shared by every tenant of a host."""


def across(ranks: int) -> tuple[str, ...]:
    """Flags for tensor parallelism by plain NCCL: no all-reduce of SGLang's own, no fusion, no multicast."""
    if ranks == 1:
        return ()
    off = ("--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion")
    return ("--tp-size", str(ranks), *off)


def kernel_caches(folder: Path) -> dict[str, str]:
    """Where every compiler of a server keeps what it compiled."""
    return {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TVM_FFI_CACHE_DIR": str(folder / "tvm-ffi"),  # SGLang's own CUDA kernels, Marlin among them
        "FLASHINFER_WORKSPACE_BASE": str(folder / "flashinfer"),
        "SGLANG_CACHE_DIR": str(folder / "sglang"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",  # off by default: fa4 compiles anew in each process
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(folder / "fa4"),
        "CUTE_DSL_CACHE_DIR": str(folder / "cute-dsl"),
        "QUACK_CACHE_DIR": str(folder / "quack"),
    }


@dataclass
class Server:
    """One server; ``trees`` come first on its module path, in this order.

    model: a name in ``kit/models``, or the absolute path of a checkpoint.
    """

    name: str
    model: str
    port: int
    trees: Sequence[Path]
    flags: Sequence[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns at once."""
        kernels = Path(os.environ.get("SOAK_KERNELS", Path.home() / ".cache" / "soak-kernels"))
        caches = kernel_caches(kernels)
        for folder in caches.values():
            if folder.startswith("/"):
                Path(folder).mkdir(parents=True, exist_ok=True)
        environment = caches | os.environ | NO_MULTICAST
        environment |= {
            "PYTHONPATH": ":".join(str(t) for t in self.trees),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = ["python3", "-m", "sglang.launch_server", "--model-path", str(MODELS / self.model)]
        command += ["--port", str(self.port), *COMMON, *self.flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment | self.environment,
                start_new_session=True,
            )

    def wait(self, within_s: float) -> bool:
        """Whether it became healthy; False, with the end of its log printed, if it ended or took too long."""
        assert self.process is not None
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return True
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        print(f"{self.name}: not healthy; its log ends with", flush=True)
        print("\n".join(self.log.read_text(errors="replace").splitlines()[-25:]), flush=True)
        return False

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process is not None and self.process.poll() is None

    def warm_up(self) -> None:
        """Compile what first requests would wait for, and leave the cache empty."""
        warm(asker(self.url), lambda words: print(self.name + words, flush=True))
        flush(self.url)

    def prefill_batches(self) -> dict[str, int]:
        """How many prefill batches its log tells of, by new sequences and whether a graph was replayed."""
        lines = re.findall(r"#new-seq: (\d+).*?cuda graph: (\w+)", self.log.read_text(errors="replace"))
        return {f"{n} {graph}": count for (n, graph), count in sorted(Counter(lines).items())}

    def stop(self) -> None:
        """End the process group."""
        if self.process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self.process.pid, number)
                    self.process.wait(5)
                    break
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue


def start_all(servers: Sequence[Server], *, first_alone: bool, within_s: float = 240) -> list[Server]:
    """Start servers and warm them up; those that came up.

    first_alone: kernels are compiled into a cache on disk by whoever starts first, so the others wait.
    """
    groups = [servers[:1], servers[1:]] if first_alone else [servers]
    ready = []
    for group in groups:
        began = time.monotonic()
        for server in group:
            server.start()
        for server in group:
            if server.wait(within_s):
                server.warm_up()
                ready.append(server)
                print(f"{server.name}: ready after {time.monotonic() - began:.0f} s", flush=True)
    return ready
