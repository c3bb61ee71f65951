"""A prefix written, resumed and recomputed, once, in namespaces of our own: is warm warm, and cold cold?

Sends four prompts (more behind data parallelism, where a hit is a matter of the rank) and one short
generation. Draws no conclusion; leaves nothing running, whatever happens.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

import numpy as np

from soak.oracle.divergence import Divergence, diverge
from soak.oracle.passes import Passes, PassFailedError, Question, Scored
from soak.oracle.probe import ProbeOutcome
from soak.plan.geometry import Geometry
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import TokenIds
from soak.sglang.session import Session

_TAIL = 32  # tokens after the prefix: scored but for the first
_PREFIX = 128  # tokens at least; whole states and pages
_GENERATED = 8
_ABORT_S = 0.8
AFFORDABLE = 12_000
"""Tokens in all that a trial may cost; a longer grid of states is not tried."""


class NotTried(Exception):
    """The trial does not fit this server; the message says why."""


@dataclass(frozen=True, slots=True)
class Trial:
    """written: tokens of the prefix; resumed, cold: where the warm and the cold pass resumed; warm_cold,
    cold_cold: their differences, None where a pass could not be compared; failed: what went wrong first, ""
    if nothing; non_finite: whether that was a null logprob; pass_s: seconds of the cold pass."""

    written: int
    resumed: int = 0
    cold: int = 0
    warm_cold: Divergence | None = None
    cold_cold: Divergence | None = None
    failed: str = ""
    non_finite: bool = False
    pass_s: float = 0.0


def prefix_length(geometry: Geometry) -> int:
    """Tokens that surely leave something to resume from: whole pages, whole states. Raises NotTried."""
    step = geometry.page
    if geometry.hybrid and (geometry.strategy or "").startswith("extra_buffer"):
        step = max(step, geometry.state_grid or 1)
    length = -(-_PREFIX // step) * step
    if length + _TAIL + _GENERATED >= geometry.context_len:
        raise NotTried(f"the context of {geometry.context_len} tokens leaves no room for it")
    if 5 * (length + _TAIL) > AFFORDABLE:
        raise NotTried(f"states are {step:,} tokens apart: more than a look is worth")
    return length


async def try_passes(client: SGLangClient, geometry: Geometry, data_parallel: int) -> Trial:
    """Runs it. Raises NotTried before anything is sent; a pass that fails is told in the Trial.

    Cancelled, it takes back what it has on the server.
    """
    length = prefix_length(geometry)
    session = Session(client, f"doctor-{secrets.token_hex(3)}")
    tries = min(8, 1 if data_parallel <= 1 else 2 * data_parallel)
    try:
        passes = Passes(session, timeout_s=60.0, rank=0 if data_parallel > 1 else None)
        return await _run(passes, geometry, length, tries)
    finally:
        await session.abort_outstanding(_ABORT_S)


async def _run(passes: Passes, geometry: Geometry, length: int, tries: int) -> Trial:
    ids = _ids(geometry, length + _TAIL)
    question, space = Question(ids, length), passes.fresh()
    resumed, first, second, took = 0, None, None, 0.0
    warm_cold = cold_cold = None
    try:
        await passes.locate(ids[:length], space)
        warm = await passes.score("warm", ids, length, space)
        for _ in range(tries - 1):
            if warm.cached:
                break
            warm = await passes.score("warm", ids, length, space)
        resumed = warm.cached
        began = time.monotonic()
        first = await passes.score("cold", ids, length, passes.fresh())
        took = time.monotonic() - began
        second = await passes.score("cold", ids, length, passes.fresh())
        warm_cold = _difference(question, warm, first)
        cold_cold = _difference(question, second, first)
        await passes.generate("generated", ids[:length], _GENERATED, 0.0, passes.fresh())
    except PassFailedError as error:
        failed, nan = error.detail, error.outcome is ProbeOutcome.NON_FINITE
    else:
        failed, nan = "", False
    colds = [one.cached for one in (first, second) if one is not None]
    return Trial(length, resumed, max(colds, default=0), warm_cold, cold_cold, failed, nan, took)


def _difference(question: Question, one: Scored, other: Scored) -> Divergence:
    return diverge(question.comparable("warm", one), question.comparable("cold", other))


def _ids(geometry: Geometry, n: int) -> TokenIds:
    words = np.random.Generator(np.random.Philox(secrets.randbits(64)))
    return words.integers(geometry.reserved_ids, geometry.vocab_size, n).astype(np.int32)
