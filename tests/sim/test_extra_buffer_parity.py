"""The extra_buffer parity script, tried on simulators: it agrees with its like and finds what differs."""

from __future__ import annotations

from typing import Any

import pytest

from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.sim.extra_buffer_parity import NotComparable, differences


@pytest.mark.parametrize("settings", [{}, {"page_size": 16, "mamba_track_interval": 64}])
async def test_a_simulator_agrees_with_itself(settings: dict[str, Any]) -> None:
    async with running(SimConfig(numerics="exact", radix_strategy="extra_buffer", **settings)) as url:
        assert await differences(url, state_chunk=64) == []


async def test_another_state_chunk_is_found() -> None:
    async with running(SimConfig(numerics="exact", radix_strategy="extra_buffer", state_chunk=32)) as url:
        found = await differences(url, state_chunk=64)
    assert any("the server resumes at" in words for words in found)


async def test_no_buffer_cannot_be_compared() -> None:
    async with running(SimConfig(numerics="exact")) as url:
        with pytest.raises(NotComparable, match="no_buffer"):
            await differences(url, state_chunk=64)
