"""Runs without load of their own, beside users' traffic that knows nothing of them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from soak import config as configs
from soak.export.terminal import Terminal
from soak.run.soaking import SoakRun
from soak.sim.config import SimConfig
from soak.sim.server import running

USERS = 3
PAUSE_S = 0.3  # of a user between two questions


async def _user(url: str, number: int) -> None:
    """Ask for ever: a few prompts together, then a narrower one; each of random ids, half of them again."""
    draw = random.Random(number)
    asked: list[list[int]] = []
    async with aiohttp.ClientSession() as session:
        while True:
            for width in (draw.randint(2, 4), 1):
                lengths = [draw.choice((64, 65, 100, 128)) for _ in range(width)]
                prompts = [[draw.randrange(10, 1000) for _ in range(n)] for n in lengths]
                if asked and draw.random() < 0.5:
                    prompts[0] = draw.choice(asked) + prompts[0][:20]
                asked = [*asked[-20:], prompts[-1]]
                body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
                async with session.post(f"{url}/generate", json=body) as answer:
                    await answer.read()
                await asyncio.sleep(PAUSE_S)


@contextlib.asynccontextmanager
async def users(url: str) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_user(url, number)) for number in range(USERS)]
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def config(url: str) -> configs.Config:
    return configs.build(
        {
            "target": {"url": url},
            "load": {"shapes": {}, "max_context": 260, "min_prompt": 60, "decode_tokens": 130},
            "run": {"duration": "150s", "drain": "5s", "seed": 3},
            "probe": {
                "rate": 20, "concurrency": 2, "tail": 24, "continuation": 24, "oldest": 8,
                "amnesia_share": 0, "repeat_share": 0,
            },
            "budget": {"pool_share_per_minute": 20},  # of a small pool: the share must not end the probing
            "detect": {"p0_max": 0.5, "min_valid_probes": 10, "max_abs_d": 1e-3},
            "thresholds": {"delivered_share": 0},
            "metrics": {"port": None},
        }
    )  # fmt: skip


async def soak_until(word: str, url: str, out: Path) -> dict[str, Any]:
    """A run that is interrupted as soon as its screen has said that word, or is over."""
    stop, screen = asyncio.Event(), io.StringIO()

    async def watch() -> None:
        while word not in screen.getvalue():  # noqa: ASYNC110 - a screen tells nobody
            await asyncio.sleep(0.2)
        stop.set()

    with Terminal(screen, live=False) as terminal:
        watching = asyncio.create_task(watch())
        try:
            return await SoakRun(config(url), out, terminal).run(stop)
        finally:
            watching.cancel()


def states(summary: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["state"] for c in summary["coverage"]}


async def test_beside_users_of_a_healthy_server_it_is_clean(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact", max_mamba_slots=512)) as url, users(url):
        summary = await soak_until(" CLEAN |", url, tmp_path)
    assert summary["verdict"] == "CLEAN", summary["reasons"]
    told = states(summary)
    assert told["planted-resume"] == "confirmed"
    assert told["beside-others"] == "presumed"
    assert told["co-batched-prefill"] != "unobservable"
    assert told["branch-resume"] == "unobservable"
    assert set(summary["divergence"]) == {"planted"}


@pytest.mark.found
async def test_a_fault_that_needs_the_traffic_of_others_is_found(tmp_path: Path) -> None:
    fault = "stale-track-rows"
    server = SimConfig(numerics="exact", faults=(fault,), radix_strategy="extra_buffer", max_mamba_slots=512)
    async with running(server) as url, users(url):
        summary = await soak_until("(alarm ", url, tmp_path)
    # users' traffic hits whom it hits: a few probes make CORRUPT, a few controls SUSPECT
    assert summary["verdict"] in {"CORRUPT", "SUSPECT"}, summary["reasons"]


async def test_where_nobody_else_is_it_is_vacuous(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact")) as url:
        summary = await soak_until(" VACUOUS |", url, tmp_path)
    assert summary["verdict"] == "VACUOUS", summary["reasons"]
    assert any("beside-others was not reached" in reason for reason in summary["reasons"])
