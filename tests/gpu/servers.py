"""Real SGLang servers on one GPU, started from unpacked trees; standard library only.

Several tiny servers fit on one card. Each is a process group of its own, and is ended with the lab.
"""

from __future__ import annotations

import json
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
COMMON = (
    "--load-format", "dummy", "--skip-tokenizer-init", "--host", "127.0.0.1", "--sampling-backend", "pytorch",
    "--grammar-backend", "none", "--enable-metrics", "--random-seed", "1",
)  # fmt: skip


@dataclass
class Server:
    """One server; ``trees`` come first on its module path, in this order."""

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
        environment = os.environ | {
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

    def ask(self, body: dict[str, object]) -> object:
        """One POST to /generate."""
        request = urllib.request.Request(
            self.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def warm_up(self) -> None:
        """Compile what first requests would wait for: prefills of several widths, and a decode."""
        for width, length in ((1, 90), (1, 200), (2, 130), (4, 128), (3, 500), (8, 60)):
            ids = [[10 + (31 * p + 7 * i + length) % 4000 for i in range(length)] for p in range(width)]
            self.ask(
                {
                    "input_ids": ids,
                    "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True},
                    "return_logprob": True,
                    "logprob_start_len": [0] * width,
                    "extra_key": [f"warm-up-{width}-{length}"] * width,
                }
            )

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
