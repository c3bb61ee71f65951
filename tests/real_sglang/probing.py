"""Warm, cold and control passes by raw HTTP, without soak: what the kit's servers are checked with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .server import Server

VOCABULARY = 1000
FIRST_PLAIN_ID = 3
"""Below are the padding, begin and end tokens."""

_fresh = (f"kit-{number:06d}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Scored:
    """One prefill. logprobs: nats of the tokens after position ``logprob_start_len``, float64."""

    cached_tokens: int
    logprobs: npt.NDArray[np.float64]


def namespace() -> str:
    """An ``extra_key`` nothing has been written under."""
    return next(_fresh)


def random_ids(count: int, seed: int) -> list[int]:
    """``count`` plain token ids."""
    return [int(i) for i in np.random.default_rng(seed).integers(FIRST_PLAIN_ID, VOCABULARY, count)]


def generate(server: Server, ids: list[int], tokens: int, extra_key: str | None = None) -> list[int]:
    """Generate ``tokens`` greedily, leaving the prompt and them in the cache; the new ids."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = server.post("/generate", {"input_ids": ids, "sampling_params": sampling, "extra_key": extra_key})
    return [int(i) for i in answer["output_ids"]]


def score(server: Server, ids: list[int], start: int, extra_key: str | None = None) -> Scored:
    """Prefill ``ids`` and return the logprobs from ``start`` on; reuse is capped at ``start`` by SGLang."""
    answer = server.post(
        "/generate",
        {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            "extra_key": extra_key,
        },
    )
    meta = answer["meta_info"]
    logprobs = np.array([entry[0] for entry in meta["input_token_logprobs"][1:]], dtype=np.float64)
    return Scored(meta["cached_tokens"], logprobs)


def locate(server: Server, ids: list[int], extra_key: str | None = None) -> int:
    """The resume boundary K of ``ids``."""
    return score(server, ids, len(ids) - 1, extra_key).cached_tokens


def divergence(one: Scored, other: Scored) -> tuple[float, float]:
    """(max |d|, mean k3) of d = one - other, nats; k3 = exp(-d) - 1 + d (Schulman's estimator)."""
    d = one.logprobs - other.logprobs
    return float(np.abs(d).max()), float(np.mean(np.exp(-d) - 1 + d))
