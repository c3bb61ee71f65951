"""Shared by the simulator's tests: prompts, and a scoring round trip over HTTP."""

from __future__ import annotations

from typing import Any

import aiohttp
import numpy as np

from soak.sim.config import SimConfig
from soak.sim.direct import Direct
from soak.sim.numerics import I64


def prompt(length: int, seed: int = 0) -> I64:
    """Random ids of the ordinary range."""
    return np.random.default_rng(seed).integers(3, 1000, length)


def direct(**settings: Any) -> Direct:
    """A simulator under the test's hand, exact unless told otherwise."""
    return Direct(SimConfig(**{"numerics": "exact", **settings}))


async def post(url: str, path: str, body: Any, **kwargs: Any) -> tuple[int, Any]:
    """Status and decoded body (text if it is not JSON)."""
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body, **kwargs) as answer:
        if answer.content_type == "application/json":
            return answer.status, await answer.json()
        return answer.status, await answer.text()


async def get(url: str, path: str, **kwargs: Any) -> tuple[int, Any]:
    """Status and decoded body (text if it is not JSON)."""
    async with aiohttp.ClientSession() as session, session.get(url + path, **kwargs) as answer:
        if answer.content_type == "application/json":
            return answer.status, await answer.json()
        return answer.status, await answer.text()


def body(ids: Any, new: int = 0, **fields: Any) -> dict[str, Any]:
    """A /generate body, greedy."""
    ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
    sampling = {"max_new_tokens": new, "temperature": 0.0, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling, **fields}
