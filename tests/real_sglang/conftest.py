"""Servers of the real tier. A start costs most of a minute, so every server is started once and shared.

``llama`` needs a key, so that all that is done to it also shows that no key leaks. The corrupted servers are
the same models with one planted fault each (``kit/corruptions/``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .server import Server, start

API_KEY = "real-tier-key-6b1f0c"
"""Looked for in everything that is written: it must appear nowhere."""

LLAMA_ARGS = ("--max-total-tokens", "32768")
HYBRID = "falconh1"
HYBRID_ARGS = ("--max-total-tokens", "32768", "--max-mamba-cache-size", "512")
"""By default 64 recurrent states fit, and a cold pass over 800 tokens writes four: victims would be gone."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder, so that a new module cannot be forgotten."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real_sglang)


@pytest.fixture(scope="session")
def llama() -> Iterator[Server]:
    """Attention only, radix cache, 32768-token pool, needs API_KEY."""
    server = start("llama", extra_args=LLAMA_ARGS, api_key=API_KEY)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def hybrid() -> Iterator[Server]:
    """Mamba2 and attention in every layer, fp32 states, ``no_buffer``, 32768-token pool, 512 states."""
    server = start(HYBRID, extra_args=HYBRID_ARGS)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def llama_with_wiped_kv() -> Iterator[Server]:
    """``llama`` that zeroes part of the KV hit by every second request of the shared namespace; API_KEY."""
    server = start("llama", extra_args=LLAMA_ARGS, api_key=API_KEY, faults=("zero_kv_on_hit",))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def hybrid_with_lost_states() -> Iterator[Server]:
    """``hybrid`` that resumes from zeros instead of the stored recurrent state, in every namespace."""
    server = start(HYBRID, extra_args=HYBRID_ARGS, faults=("state_not_restored",))
    yield server
    server.stop()
