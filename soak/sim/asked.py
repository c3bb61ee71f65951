"""Reading ``POST /generate``.

One body into one request per prompt, refusing what SGLang refuses, in its words.

Pure: no engine, no I/O. Messages and statuses were read off a running SGLang 0.5.18 with --skip-tokenizer-
init.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from soak.sim.config import SimConfig
from soak.sim.grammar import GrammarError, texts_of
from soak.sim.request import Request, Sampling
from soak.sim.text import tokenizer

NO_TEXT = (
    "The engine initialized with skip_tokenizer_init=True cannot accept text prompts. Please provide "
    "input_ids or re-initialize the engine with skip_tokenizer_init=False."
)
SAMPLING_KEYS = frozenset(
    [
        "max_new_tokens",
        "stop",
        "stop_token_ids",
        "stop_regex",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "min_new_tokens",
        "n",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "custom_params",
        "stream_interval",
        "logit_bias",
        "sampling_seed",
    ]
)
UNSUPPORTED_SAMPLING = frozenset(["stop", "stop_regex", "regex", "ebnf", "structural_tag"])


class Refused(ValueError):
    """The request is refused before any work.

    ``body`` overrides SGLang's usual ``{"error": {"message": ..}}``.
    """

    def __init__(self, message: str, status: int = 400, body: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        plain = None if status >= 500 else {"error": {"message": message}}
        self.body = body if body is not None else plain


class RefusedLate(Refused):
    """Refused by the scheduler rather than at the door.

    A stream then ends with an abort, not an error object.
    """


@dataclass(frozen=True, slots=True)
class Asked:
    """One body: its requests, whether it was a batch, and whether it wants a stream."""

    requests: tuple[Request, ...]
    batched: bool
    stream: bool


def internal_error(message: str) -> dict[str, Any]:
    """The body of an HTTP exception in SGLang."""
    return {"object": "error", "message": message, "type": "InternalServerError", "param": None, "code": 500}


def validation_error(message: str) -> Refused:
    """What FastAPI's validation becomes in SGLang."""
    text = f"1 validation error:\n  {message}"
    body = {"object": "error", "message": text, "type": "Bad Request", "param": None, "code": 400}
    return Refused(message, body=body)


def read(body: Any, config: SimConfig, first_seq: int, now_s: float) -> Asked:
    """The requests that ``body`` asks for. Raises Refused."""
    if not isinstance(body, dict):
        raise validation_error("Input should be a valid dictionary")
    ids = body.get("input_ids")
    if ids is None and body.get("text") is not None:
        ids = _encoded(body["text"], config)
    if ids is None:
        raise Refused("Either text, input_ids or input_embeds should be provided.")
    if not isinstance(ids, list):
        raise validation_error(f"input_ids: must be list or null; got {type(ids).__name__}")
    if not ids:
        raise Refused("input_ids cannot be empty.")
    batched = isinstance(ids[0], list)
    prompts = ids if batched else [ids]
    rids = _rids(body.get("rid"), len(prompts), batched)
    stream = bool(body.get("stream", False))
    requests = tuple(
        _one(_Fields(body, i, batched), prompt, config, rid=rids[i], seq=first_seq + i, arrived_s=now_s)
        for i, prompt in enumerate(prompts)
    )
    for request in requests:
        request.stream = stream
    return Asked(requests, batched, stream)


def _encoded(text: Any, config: SimConfig) -> Any:
    """The ids of a text, or of each of several."""
    if not config.tokenizer:
        raise Refused(NO_TEXT)
    texts = text if isinstance(text, list) else [text]
    if not texts or not all(isinstance(one, str) for one in texts):
        raise validation_error("text: must be str, list of str or null")
    ids = [tokenizer(config.vocab).encode(one) for one in texts]
    return ids if isinstance(text, list) else ids[0]


def _rids(rid: Any, n: int, batched: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(n)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(n)] if batched else [rid]
    if not isinstance(rid, list) or not all(isinstance(r, str) for r in rid):
        raise validation_error("rid: must be str, list of str or null")
    if len(rid) != n:
        raise Refused("The specified rids length mismatch with the batch_size for batch processing.")
    repeated = sorted({r for r in rid if rid.count(r) > 1})
    if repeated:
        raise Refused(f"Duplicate request IDs detected within the request: {repeated}")
    return rid


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of prompt ``index`` of a body: a batch may give one value for all or a list of values."""

    body: dict[str, Any]
    index: int
    batched: bool

    def get(self, name: str, default: Any) -> Any:
        value = self.body.get(name)
        if value is None:
            return default
        per_prompt = (
            isinstance(value, list) and value and (name != "token_ids_logprob" or isinstance(value[0], list))
        )
        if not self.batched or not per_prompt:
            return value
        if self.index >= len(value):
            raise Refused(f"{name} should have one entry per prompt of the batch.")
        return default if value[self.index] is None else value[self.index]


def _one(fields: _Fields, prompt: Any, config: SimConfig, *, rid: str, seq: int, arrived_s: float) -> Request:
    if not isinstance(prompt, list) or not all(type(t) is int for t in prompt):
        raise validation_error("input_ids: Input should be a list of integers")
    if not prompt:
        raise Refused("input_ids cannot be empty.")
    if min(prompt) < 0 or max(prompt) >= config.vocab:
        raise Refused(f"The input_ids {prompt} contains values greater than the vocab size ({config.vocab}).")
    sampling = _sampling(fields.get("sampling_params", {}), config)
    _check_lengths(len(prompt), sampling, config)
    page = config.page_size
    room = min(
        max_request_len(config) - len(prompt) - 1,
        config.max_total_tokens - -(-len(prompt) // page) * page - page - 1,
    )
    sampling = replace(sampling, max_new_tokens=max(0, min(sampling.max_new_tokens, room)))
    return_logprob = bool(fields.get("return_logprob", False))
    start = fields.get("logprob_start_len", -1) if return_logprob else -1
    if start > len(prompt):
        raise RefusedLate(
            f"req.logprob_start_len={start} is higher than the number of input tokens "
            f"len(req.origin_input_ids)={len(prompt)}. Please use a smaller logprob_start_len."
        )
    picked = _picked(fields.get("token_ids_logprob", None), config.vocab)
    if return_logprob and start == -1 and picked is None:
        start = len(prompt)
    lora = fields.get("lora_path", None)
    if lora is not None and lora not in config.lora_adapters:
        raise Refused(f"Got LoRA adapter that has never been loaded: {lora}")
    return Request(
        rid=rid,
        prompt=np.asarray(prompt, np.int64),
        sampling=sampling,
        seq=seq,
        return_logprob=return_logprob,
        logprob_start_len=int(start),
        top_logprobs_num=int(fields.get("top_logprobs_num", 0)) if return_logprob else 0,
        token_ids_logprob=picked if return_logprob else None,
        extra_key=fields.get("extra_key", None),
        cache_salt=fields.get("cache_salt", None),
        lora=0 if lora is None else 1 + config.lora_adapters.index(lora),
        lora_name=lora,
        arrived_s=arrived_s,
    )


def _sampling(params: Any, config: SimConfig) -> Sampling:
    if not isinstance(params, dict):
        raise validation_error("sampling_params: Input should be a valid dictionary")
    unknown = sorted(set(params) - SAMPLING_KEYS)
    if unknown:
        raise Refused("Internal Server Error", 500)
    constrained = sorted(k for k in UNSUPPORTED_SAMPLING if params.get(k))
    if params.get("json_schema") and not config.tokenizer:
        constrained.insert(0, "json_schema")
    if constrained:
        raise Refused(f"{constrained[0]} needs a tokenizer or a grammar backend; the simulator has neither.")
    try:
        texts = texts_of(params["json_schema"]) if params.get("json_schema") else ()
    except GrammarError as error:
        raise Refused(f"Failed to compile json grammar: {error}") from error
    new = params.get("max_new_tokens", 128)
    new = 1 << 30 if new is None else int(new)
    if new < 0:
        raise Refused(f"max_new_tokens must be at least 0, got {new}.")
    temperature = float(params.get("temperature", 1.0))
    if not math.isfinite(temperature) or temperature < 0:
        raise Refused(f"temperature must be a non-negative finite number, got {params['temperature']}.")
    top_p = float(params.get("top_p", 1.0))
    if not 0 < top_p <= 1:
        raise Refused(f"top_p must be in (0, 1], got {params['top_p']}.")
    top_k = int(params.get("top_k", -1))
    if top_k < -1 or top_k == 0:
        raise Refused(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    return Sampling(
        max_new_tokens=new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        ignore_eos=bool(params.get("ignore_eos", False)),
        stop_token_ids=tuple(params.get("stop_token_ids") or ()),
        seed=params.get("sampling_seed"),
        texts=texts,
    )


def _check_lengths(n: int, sampling: Sampling, config: SimConfig) -> None:
    limit = config.context_len
    if n >= limit:
        raise Refused(f"The input ({n} tokens) is longer than the model's context length ({limit} tokens).")
    new = sampling.max_new_tokens
    if new < 1 << 30 and n + new > limit:
        raise Refused(
            f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
            f"You requested a total of {n + new} tokens: {n} tokens from the input messages and {new} tokens "
            "for the completion. Please reduce the number of tokens in the input messages or the completion "
            "to fit within the limit."
        )

    allowed = max_request_len(config) - 5
    if n >= allowed:
        raise RefusedLate(
            f"Input length ({n} tokens) exceeds the maximum allowed length ({allowed} tokens). "
            "Use a shorter input or enable --allow-auto-truncate."
        )


def max_request_len(config: SimConfig) -> int:
    """Most tokens, prompt and output, that one request may have."""
    return min(config.context_len - 1, config.max_total_tokens - 1)


def _picked(ids: Any, vocab: int) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(t) is int for t in ids):
        raise Refused("token_ids_logprob must be a flat list of integers.")
    for token in ids:
        if not 0 <= token < vocab:
            raise Refused(
                f"token_ids_logprob contains out-of-vocabulary token id {token}; valid range is [0, {vocab})."
            )
    return tuple(ids) if ids else None
