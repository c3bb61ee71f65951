"""The stub's answers, made once and cut where a request's own rid and prompt length go in. Pure.

Answers are those of SGLang's ``/generate`` (cumulative events where it streams) and of the OpenAI endpoints
that other load generators ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

MODEL = "soak-stub"
CONTEXT = 8192
VOCABULARY = 1000
MOST_TOKENS = 4096
"""Most tokens of one answer."""

_RID, _PROMPT = "@RID@", 900_000_001  # stand where a request's own values go


@dataclass(frozen=True, slots=True)
class Template:
    """A JSON object in three pieces: before the rid, between it and the prompt's length, after that."""

    head: bytes
    middle: bytes
    tail: bytes

    def of(self, rid: bytes, prompt_tokens: bytes) -> bytes:
        """The object for one request."""
        return b"".join((self.head, rid, self.middle, prompt_tokens, self.tail))


def generated(tokens: int, *, last: bool) -> dict[str, Any]:
    """What ``/generate`` says after so many tokens; last: the answer ends there."""
    return {
        "text": " a" * tokens,
        "output_ids": [11 + i % 900 for i in range(tokens)],
        "meta_info": {
            "id": _RID,
            "finish_reason": {"type": "length", "length": tokens} if last else None,
            "prompt_tokens": _PROMPT,
            "weight_version": "default",
            "total_retractions": 0,
            "completion_tokens": tokens,
            "cached_tokens": 0,
            "e2e_latency": 0.001,
        },
    }


def _template(value: dict[str, Any]) -> Template:
    head, _, rest = orjson.dumps(value).partition(_RID.encode())
    middle, _, tail = rest.partition(str(_PROMPT).encode())
    return Template(head, middle, tail)


@lru_cache(maxsize=64)
def whole(tokens: int) -> Template:
    """The one object of an answer that is not streamed."""
    return _template(generated(tokens, last=True))


@lru_cache(maxsize=16)
def streamed(tokens: int) -> tuple[Template, ...]:
    """The events of a streamed answer, one a token, without their ``data: ``."""
    return tuple(_template(generated(n, last=n == tokens)) for n in range(1, tokens + 1))


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 32, "completion_tokens": tokens, "total_tokens": 32 + tokens}


@lru_cache(maxsize=64)
def completion(tokens: int, *, chat: bool) -> bytes:
    """An OpenAI answer that is not streamed."""
    said: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    words = " a" * tokens
    said |= {"message": {"role": "assistant", "content": words}} if chat else {"text": words}
    kind = "chat.completion" if chat else "text_completion"
    value = {"id": "stub", "object": kind, "created": 1, "model": MODEL}
    return orjson.dumps(value | {"choices": [said], "usage": _usage(tokens)})


@lru_cache(maxsize=16)
def completion_events(tokens: int, *, chat: bool) -> tuple[bytes, ...]:
    """The events of a streamed OpenAI answer, one a token, then one with the usage."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    value = {"id": "stub", "object": kind, "created": 1, "model": MODEL}
    events = []
    for n in range(1, tokens + 1):
        said: dict[str, Any] = {"index": 0, "finish_reason": "length" if n == tokens else None}
        said |= {"delta": {"role": "assistant", "content": " a"}} if chat else {"text": " a"}
        events.append(orjson.dumps(value | {"choices": [said]}))
    events.append(orjson.dumps(value | {"choices": [], "usage": _usage(tokens)}))
    return tuple(events)


def server_info() -> dict[str, Any]:
    """What a server of SGLang says of itself, as far as soak and others ask."""
    return {
        "model_path": MODEL,
        "served_model_name": MODEL,
        "tokenizer_path": MODEL,
        "skip_tokenizer_init": True,
        "grammar_backend": "none",
        "version": "0.5.18+soak.stub",
        "status": "ready",
        "is_embedding": False,
        "disable_radix_cache": False,
        "enable_deterministic_inference": False,
        "uses_mamba_radix_cache": False,
        "enable_hierarchical_cache": False,
        "random_seed": 1,
        "dp_size": 1,
        "tp_size": 1,
        "page_size": 1,
        "chunked_prefill_size": 2048,
        "max_running_requests": 4096,
        "max_total_num_tokens": 1_000_000,
        "max_req_input_len": CONTEXT - 5,
        "vocab_size": VOCABULARY,
        "startup_time": {"scheduler_e2e": 1.0},
        "internal_states": [{}],
        "simulator": True,
    }


def model_info() -> dict[str, Any]:
    """Which model this is not."""
    return {
        "model_path": MODEL,
        "tokenizer_path": MODEL,
        "is_generation": True,
        "model_type": "soak_stub",
        "architectures": ["SoakStub"],
    }


def models() -> dict[str, Any]:
    """The OpenAI-style list."""
    card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "soak", "root": MODEL}
    return {"object": "list", "data": [card | {"parent": None, "max_model_len": CONTEXT}]}
