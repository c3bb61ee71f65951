"""What an SGLang server in good order answers: the shapes seen on 0.5.18, as objects to bend in tests."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import orjson

from soak.sglang.exchange import GenerateRequest

RID = "soak-test-0000000001"


def request(n: int = 12, prompts: int = 1, **fields: Any) -> GenerateRequest:
    """Prompts of n ids, all different, under rids of one width."""
    ids = tuple(np.arange(10 + 100 * i, 10 + 100 * i + n, dtype=np.int32) for i in range(prompts))
    rids = tuple(f"soak-test-{i + 1:010d}" for i in range(prompts))
    fields.setdefault("max_new_tokens", 4)
    return GenerateRequest(prompts=ids, rids=rids, **fields)


def logprob(position: int, token: int) -> float:
    """Some number that depends on both, as a float32 would print."""
    return float(np.float32(-(zlib.crc32(b"%d %d" % (position, token)) % 9973) / 1000.0 - 0.001))


def answer(wanted: GenerateRequest, i: int = 0, new: int | None = None, done: bool = True) -> dict[str, Any]:
    """The answer to prompt i with ``new`` tokens so far (default: all)."""
    prompt = [int(t) for t in wanted.prompts[i] if not isinstance(t, str)]
    n = len(prompt)
    made = wanted.max_new_tokens if new is None else new
    output = [500 + j for j in range(made)]
    start = wanted.logprob_start_len
    cached = 0 if start is None else min(start % n if start < 0 else start, n - 1)
    meta: dict[str, Any] = {
        "id": wanted.rids[i],
        "finish_reason": {"type": "length", "length": made} if done else None,
        "prompt_tokens": n,
        "weight_version": "default",
        "num_retractions": 0,
    }
    if wanted.return_logprob:
        first = n if start is None or start < 0 else start
        meta["input_token_logprobs"] = [
            [None if p == first else logprob(p, prompt[p]), prompt[p], None] for p in range(first, n)
        ]
        meta["output_token_logprobs"] = [[logprob(n + j, t), t, None] for j, t in enumerate(output)]
        meta["output_token_logprobs_length"] = made
        if wanted.top_logprobs_num:
            k = range(wanted.top_logprobs_num)
            meta["input_top_logprobs"] = [
                None if p == first else [[logprob(p, c), c, None] for c in k] for p in range(first, n)
            ]
            meta["output_top_logprobs"] = [[[logprob(n + j, c), c, None] for c in k] for j in range(made)]
        if wanted.token_ids_logprob:
            asked = wanted.token_ids_logprob
            meta["input_token_ids_logprobs"] = [
                None if p == first else [[logprob(p, c), c, None] for c in asked] for p in range(first, n)
            ]
            meta["output_token_ids_logprobs"] = [
                [[logprob(n + j, c), c, None] for c in asked] for j in range(made)
            ]
    meta |= {"reasoning_tokens": 0, "completion_tokens": made, "cached_tokens": cached}
    if cached:
        meta["cached_tokens_details"] = {"device": cached, "host": 0}
    meta |= {"dp_rank": None, "e2e_latency": 0.01}
    return {"text": "ä" * made, "output_ids": output, "meta_info": meta}


def body(wanted: GenerateRequest) -> bytes:
    """The whole unstreamed body."""
    answers = [answer(wanted, i) for i in range(len(wanted.prompts))]
    return orjson.dumps(answers if len(answers) > 1 else answers[0])


def events(wanted: GenerateRequest, *, incremental: bool = False) -> list[dict[str, Any]]:
    """The streamed events in order, prompts taking turns."""
    found = []
    for made in range(1, wanted.max_new_tokens + 1):
        for i in range(len(wanted.prompts)):
            event = answer(wanted, i, made, made == wanted.max_new_tokens)
            if incremental:
                event["output_ids"] = event["output_ids"][-1:]
                event["text"] = event["text"][-1:]
                for name in ("token", "top", "token_ids"):
                    key = f"output_{name}_logprobs"
                    if key in event["meta_info"]:
                        event["meta_info"][key] = event["meta_info"][key][-1:]
            if len(wanted.prompts) > 1:
                event["index"] = i
            found.append(event)
    return found


def stream(wanted: GenerateRequest, *, incremental: bool = False) -> bytes:
    """The whole streamed body."""
    return sse(events(wanted, incremental=incremental)) + b"data: [DONE]\n\n"


def sse(found: list[dict[str, Any]]) -> bytes:
    """Objects as server-sent events."""
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in found)
