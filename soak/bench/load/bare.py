"""The bare aiohttp client that soak's is compared with: what anybody would write, and nothing more."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import aiohttp
import orjson

from soak.bench.load.meter import Meter

IDS = [11 + 17 * i % 900 for i in range(56)]
"""As many ids as the plan's short prompts have in the middle."""


def body(serial: int, tokens: int, *, stream: bool) -> bytes:
    """One request of /generate."""
    sampling = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    rid = f"bare-{serial:010d}"
    return orjson.dumps({"rid": rid, "input_ids": IDS, "sampling_params": sampling, "stream": stream})


async def closed_loop(url: str, meter: Meter, at_once: int, tokens: int, *, stream: bool) -> None:
    """As many requests as the meter wants, by ``at_once`` workers."""
    serials = itertools.count()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def worker() -> None:
            while meter.more():
                chunks = 0
                async with session.post(
                    f"{url}/generate", data=body(next(serials), tokens, stream=stream)
                ) as response:
                    if stream:
                        async for line in response.content:
                            if line.startswith(b"data: {"):
                                chunks += 1
                                last = line
                        orjson.loads(last[6:])
                    else:
                        orjson.loads(await response.read())
                meter.done(chunks)

        await asyncio.gather(*(worker() for _ in range(at_once)))


async def _last_event(response: aiohttp.ClientResponse) -> bytes:
    last = b""
    async for line in response.content:
        if line.startswith(b"data: {"):
            last = line
    return last[6:]


async def open_loop(url: str, seconds: float, rate: float, tokens: int) -> list[float]:
    """Seconds by which each request was sent late.

    At the times of a Poisson process, and four of five are streamed, as a plan of soak has it.
    """
    lags: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(serial: int, due: float) -> None:
            lags.append(max(0.0, time.monotonic() - due))
            stream = serial % 5 > 0
            async with session.post(f"{url}/generate", data=body(serial, tokens, stream=stream)) as response:
                orjson.loads(await (_last_event(response) if stream else response.read()))

        due, gaps = time.monotonic(), random.Random(1)
        for serial in range(int(seconds * rate)):
            due += gaps.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(ask(serial, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return lags
