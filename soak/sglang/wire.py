"""The wire: a GenerateRequest to bytes, and the bytes of an answer to Answers. Pure, no I/O.

Nothing a server can send raises here; what is wrong with it is in the Answer's outcome. Streams are read by
StreamDecoder. Times and connection failures are the client's to fill in.
"""

from __future__ import annotations

import re

import numpy as np
import orjson

from soak.sglang.answer import error_in, error_text, read_answer
from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from soak.sglang.logprobs import parse
from soak.sglang.stream import StreamDecoder

__all__ = ["StreamDecoder", "decode_generate", "encode_generate", "outcome_of_status", "refusal"]

_TITLE = re.compile(rb"<title[^>]*>([^<]{1,200})", re.IGNORECASE)


def encode_generate(request: GenerateRequest) -> bytes:
    """The body of POST /generate. One prompt travels as itself, several as lists with a list of rids.

    Raises ValueError when the request itself makes no sense (no prompt, mixed kinds, rids missing or empty):
    that is a mistake of the caller, not of a server.
    """
    prompts = request.prompts
    texts = sum(isinstance(p, str) for p in prompts)
    if not prompts or texts not in (0, len(prompts)):
        raise ValueError("a request needs one or more prompts, all token ids or all text")
    if len(request.rids) != len(prompts) or not all(request.rids):
        raise ValueError(f"{len(prompts)} prompts need as many rids, none empty; got {len(request.rids)}")
    single = len(prompts) == 1
    sampling: dict[str, object] = {
        "max_new_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "ignore_eos": request.ignore_eos,
    }
    if request.sampling_seed is not None:
        sampling["sampling_seed"] = request.sampling_seed
    if request.json_schema is not None:
        sampling["json_schema"] = request.json_schema
    sent = [p if isinstance(p, str) else np.ascontiguousarray(p, np.int32) for p in prompts]
    body: dict[str, object] = {
        "rid": request.rids[0] if single else request.rids,
        "text" if texts else "input_ids": sent[0] if single else sent,
        "sampling_params": sampling,
        "stream": request.stream,
    }
    if request.return_logprob:
        body["return_logprob"] = True
        if request.logprob_start_len is not None:
            body["logprob_start_len"] = request.logprob_start_len
        if request.top_logprobs_num > 0:
            body["top_logprobs_num"] = request.top_logprobs_num
    if request.token_ids_logprob:
        body["token_ids_logprob"] = request.token_ids_logprob
    if request.extra_key is not None:
        body["extra_key"] = request.extra_key
    if request.routed_dp_rank is not None:
        body["routed_dp_rank"] = request.routed_dp_rank
    if request.lora_path is not None:
        body["lora_path"] = request.lora_path
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def decode_generate(body: bytes, request: GenerateRequest, *, http_status: int = 200) -> tuple[Answer, ...]:
    """One Answer per prompt from a whole, unstreamed body."""
    if http_status != 200:
        answers = _all(request, outcome_of_status(http_status), f"HTTP {http_status}: {refusal(body)}")
    else:
        answers = _decode(body, request)
    for answer in answers:
        answer.http_status = http_status
    return answers


def _decode(body: bytes, request: GenerateRequest) -> tuple[Answer, ...]:
    try:
        value, lists = parse(body)
    except orjson.JSONDecodeError as error:
        return _all(request, Outcome.MALFORMED, f"not JSON ({error}): {refusal(body)}")
    message = error_in(value)
    if message is not None:
        return _all(request, Outcome.IN_BAND_ERROR, message)
    if len(request.prompts) == 1:
        return (read_answer(value, request, 0, lists),)
    if not isinstance(value, list) or len(value) != len(request.prompts):
        got = f"{len(value)} answers" if isinstance(value, list) else "one object"
        return _all(request, Outcome.MALFORMED, f"{len(request.prompts)} prompts sent, {got} came back")
    return tuple(read_answer(one, request, i, lists) for i, one in enumerate(value))


def _all(request: GenerateRequest, outcome: Outcome, detail: str) -> tuple[Answer, ...]:
    return tuple(Answer(rid=rid, outcome=outcome, detail=detail) for rid in request.rids)


def outcome_of_status(status: int) -> Outcome:
    """What an HTTP status other than 200 means. 503 is SGLang's full queue: refused before any work."""
    if 400 <= status < 500 or status == 503:
        return Outcome.REJECTED
    return Outcome.SERVER_ERROR if status >= 500 else Outcome.MALFORMED


def refusal(body: bytes) -> str:
    """A server's words in a body of any kind, on one line, at most 500 characters."""
    try:
        return error_text(orjson.loads(body))
    except orjson.JSONDecodeError:
        title = _TITLE.search(body[:65536])
        if title is not None:
            return f"an HTML page titled {' '.join(title[1].decode(errors='replace').split())!r}"
        return error_text(body[:4096].decode(errors="replace")) or "an empty body"
