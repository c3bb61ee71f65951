"""Answers that SGLang would have given to a long prompt of which every token was scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson

from soak.sglang.exchange import GenerateRequest

TOP = 8
_VOCABULARY = 152_000


@dataclass(frozen=True, slots=True)
class Scored:
    """A request, and the body of its answer."""

    request: GenerateRequest
    body: bytes


def scored(tokens: int, top: int, seed: int) -> Scored:
    """``tokens`` prompt logprobs, each with the ``top`` most likely candidates. The numbers are float32's."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, _VOCABULARY, tokens).astype(np.int32)
    entries: list[list[object]] = [
        [logprob, token, None] for logprob, token in zip(_logprobs(rng, tokens), ids.tolist(), strict=True)
    ]
    entries[0][0] = None
    meta: dict[str, object] = {
        "id": "soak-bench-0000000001",
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": tokens,
        "weight_version": "default",
        "input_token_logprobs": entries,
        "output_token_logprobs": [],
        "completion_tokens": 0,
        "cached_tokens": 0,
    }
    if top:
        rows = [
            [
                [logprob, token, None]
                for logprob, token in zip(
                    _logprobs(rng, top), rng.integers(0, _VOCABULARY, top).tolist(), strict=True
                )
            ]
            for _ in range(tokens - 1)
        ]
        meta["input_top_logprobs"] = [None, *rows]
        meta["output_top_logprobs"] = []
    request = GenerateRequest(
        prompts=(ids,),
        rids=("soak-bench-0000000001",),
        max_new_tokens=0,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=top,
    )
    return Scored(request, orjson.dumps({"text": "", "output_ids": [], "meta_info": meta}))


def _logprobs(rng: np.random.Generator, count: int) -> list[float]:
    return [float(value) for value in (-rng.exponential(2.0, count)).astype(np.float32)]
