"""``python -m soak.bench.load.child CLIENT URL``: one client in a process of its own.

Tasks come in by stdin, a line of JSON each; what each round measured goes to stdout as a line of JSON. It
ends with stdin, so that it never outlives whoever started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from soak.bench.load import bare, by_hand
from soak.bench.load.figures import Round, quantiles
from soak.bench.load.meter import Meter

CLIENTS = ("bare", "by-hand", "client", "soak")


def _peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _lag(figures: dict[str, Any]) -> tuple[float, float, float]:
    return tuple(figures[name] or 0.0 for name in ("p50", "p99", "max"))  # type: ignore[return-value]


async def _closed(client: str, url: str, task: dict[str, Any]) -> Round:
    at_once, tokens, stream = (task[k] for k in ("at_once", "tokens", "stream"))
    meter, failed = Meter(task["requests"], 2 * at_once, task["seconds"]), 0
    if client == "soak":
        from soak.bench.load import ours

        with tempfile.TemporaryDirectory() as out:
            failed = await ours.whole_run(
                url, Path(out), asyncio.Event(), meter, at_once, tokens, stream=stream
            )
    elif client == "client":
        from soak.bench.load import ours

        failed = await ours.client_alone(url, meter, at_once, tokens, stream=stream)
    elif client == "by-hand":
        await by_hand.closed_loop(url, meter, at_once, tokens)
    else:
        await bare.closed_loop(url, meter, at_once, tokens, stream=stream)
    return Round(meter.requests, meter.chunks, meter.wall_s, meter.cpu_s, _peak_rss(), failed=failed)


async def _open(client: str, url: str, task: dict[str, Any]) -> Round:
    seconds, rate = task["seconds"], task["rate"]
    if client == "soak":
        from soak.bench.load import ours

        with tempfile.TemporaryDirectory() as out:
            done, summary = await ours.at_rate(url, Path(out), asyncio.Event(), seconds, rate)
        load = summary["load"]
        return Round(
            done.requests, 0, done.wall_s, done.cpu_s, _peak_rss(), _lag(load["schedule_lag_s"]),
            _lag(load["loop_lag_s"]), done.failed,
        )  # fmt: skip
    began, cpu = time.monotonic(), time.process_time()
    lags = await bare.open_loop(url, seconds, rate, task["tokens"])
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    return Round(len(lags), 0, wall_s, cpu_s, _peak_rss(), quantiles(lags))


def _runner(client: str) -> Any:
    if client == "soak":  # as `soak run` does it
        from soak.run.event_loop import runner

        return runner()
    with contextlib.suppress(ImportError):
        import uvloop

        return asyncio.Runner(loop_factory=uvloop.new_event_loop)
    return asyncio.Runner()


def main() -> int:
    """0 when stdin ends."""
    client, url = sys.argv[1:]
    if client not in CLIENTS:
        raise SystemExit(f"no such client: {client}; there are {', '.join(CLIENTS)}")
    with _runner(client) as loop:
        for line in sys.stdin:
            task = orjson.loads(line)
            work = _open(client, url, task) if task.get("rate") else _closed(client, url, task)
            os.write(1, orjson.dumps(asdict(loop.run(work))) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
