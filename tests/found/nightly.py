"""The nightly workload, compressed in time, against simulators with a fault planted, as one types it.

Compressed: a context of 420 tokens, 60 controls instead of 1,332, no limit on what probes may take. A night
fills the pool some hundred times; here the shapes that do so have a greater weight where a fault needs them.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPRESSED = {
    "load.rate": "0.8",
    "load.max_context": "420",
    "load.min_prompt": "48",
    "load.max_new_tokens": "6",
    "load.decode_tokens": "160",
    "load.burst": "3",
    "probe.rate": "12",
    "probe.concurrency": "3",
    "probe.tail": "24",
    "budget.pool_share_per_minute": "null",
    "budget.probe_share": "null",
    "detect.p0_max": "0.2",
    "detect.min_valid_probes": "20",
    "metrics.port": "null",
    "run.drain": "5s",
}
_ROOM = ("--max-mamba-slots", "512")  # for victims to grow old in
_READY_S = 60.0
_SMALL_POOL = ("--max-total-tokens", "3000")


@dataclass(frozen=True, slots=True)
class Case:
    """fault: "" for none; within_s: of soaking, on a busy machine; sim: options beyond the fault's own."""

    fault: str
    within_s: int = 600
    sim: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


CI = (
    "spec-untracked",
    "multi-prefill-offset",
    "mixed-chunk-drop",
    "chunk-boundary-slip",
    "stale-track-rows",
)

SPECIAL = {
    of.fault: of
    for of in (
        Case("host-tier-race", 600, _SMALL_POOL, {"load.shapes.tier-round-trip": "60"}),
        # Of what lies in a pool of three or four documents, one or two are spoiled, and whole again once they
        # have been to the host and back: probes must come soon, leave the pool as it is, and know exactly.
        Case(
            "abort-slot-reuse",
            600,
            ("--model", "attention", "--numerics", "exact", "--max-total-tokens", "2500"),
            {
                "load.shapes.abort-load": "1000",
                "load.max_context": "700",
                "load.rate": "0.1",
                "probe.concurrency": "1",
                "probe.control_share": "0",
                "probe.repeat_share": "0",
                "probe.amnesia_share": "0",
                "probe.invariance_share": "0",
                "detect.p0_max": "0.5",
                "detect.max_abs_d": "0.001",
                "stop.token_usage": "1.0",
                "stop.queue": "1000",
                "stop.ttft": "600s",
            },
        ),
        # Cold passes are wrong as well, each in its own way. While a part of the pool was never used some are
        # right, and two that agree to the last bit say so where that is what the server is declared to do.
        Case("slot-reuse-initial-state", 600, ("--numerics", "exact"), {"detect.max_abs_d": "0.001"}),
        # a night's prompts are four chunks long, and so are these
        Case("chunk-boundary-slip", 600, ("--chunked-prefill-size", "64")),
        # A night asks some hundred times what is generated in a batch, a run of minutes once or twice.
        Case("late-output-rows", 600, (), {"probe.invariance_share": "0.8"}),
        Case("retract-lost-state", 600, (), {"load.shapes.pause-queue": "40"}),
        # without a fault: what it requires must be reached within these minutes, as it is in a night
        Case(
            "",
            400,
            (),
            {f"load.shapes.{shape}": "40" for shape in ("pause-queue", "tenant-ping-pong", "abort-storm")},
        ),
        Case("identity-swap", 600, (), {"load.shapes.canary": "160"}),
        # One of a few prefixes that a short tail was added to must be asked about after that.
        Case("short-tail-chunk", 600, (), {"load.shapes.branching": "160"}),
        # An adapter and a namespace of its name must meet at one document, which twelve indices share.
        Case("tenant-key-collision", 600, (), {"load.shapes.adapters": "160"}),
    )
}


def case(fault: str) -> Case:
    """How that fault is brought about."""
    return SPECIAL.get(fault) or Case(fault)


@contextmanager
def simulator(of: Case, log: Path) -> Iterator[str]:
    """The address of a simulator with the fault planted."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "soak", "sim", "--port", str(port), *_ROOM, *of.sim]
    if of.fault:
        words += ["--fault", of.fault]
    with log.open("wb") as told:
        child = subprocess.Popen(words, stdout=told, stderr=subprocess.STDOUT, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _READY_S
        while not _healthy(url):
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"no simulator at {url}"
            time.sleep(0.1)
        yield url
    finally:
        child.terminate()
        child.wait(timeout=20)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def soak_until_found(of: Case, folder: Path, seed: int = 1) -> dict[str, Any]:
    """The summary of a run that is interrupted as soon as it says CORRUPT, or is over."""
    with simulator(of, folder / "sim.log") as url:
        words = [sys.executable, "-m", "soak", "run", "workloads/nightly.yaml", "--target", url, "--json"]
        words += ["--seed", str(seed), "--duration", f"{of.within_s}s"]
        words += ["--out", str(folder / "run"), "--state", str(folder / "state.sqlite")]
        for key, value in {**COMPRESSED, **of.values}.items():
            words += ["--set", f"{key}={value}"]
        with (folder / "summary.json").open("wb") as out:
            run = subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert run.stderr is not None
        said, found = [], False
        for line in run.stderr:
            said.append(line)
            if "CORRUPT: " in line and not found:
                found = True
                run.send_signal(signal.SIGINT)  # once: a second one leaves no summary
        run.wait(timeout=60)
    text = (folder / "summary.json").read_text()
    assert text, "".join(said[-20:])
    summary: dict[str, Any] = json.loads(text)
    return summary
