"""The simulator configured like the servers of this tier, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from soak.sim.config import SimConfig
from soak.sim.server import running

from .conftest import API_KEY

PACE_S = 0.004
"""A step takes at least this long, so that there is time to abort, flush and pause as on a real server."""

LIKE: dict[str, SimConfig] = {
    "llama": SimConfig(
        model="attention",
        max_total_tokens=32768,
        prefill_graph=False,
        decode_graph=False,
        api_key=API_KEY,
        step_delay_s=PACE_S,
    ),
    "hybrid": SimConfig(
        model="hybrid",
        radix_strategy="no_buffer",
        mamba_track_interval=256,
        max_mamba_slots=512,
        max_total_tokens=32768,
        prefill_graph=False,
        decode_graph=False,
        step_delay_s=PACE_S,
    ),
}
"""Context 4096, chunk 256, page 1, 16 running requests, vocabulary 1000: the simulator's defaults."""


@contextlib.contextmanager
def serving(config: SimConfig) -> Iterator[str]:
    """The URL of a simulator that runs until the block is left."""
    ready: list[str] = []
    up = threading.Event()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running(config) as url:
            ready.append(url)
            up.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            up.set()
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    up.wait()
    assert ready, "the simulator did not start"
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
