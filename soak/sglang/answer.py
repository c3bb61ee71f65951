"""One parsed answer object of SGLang against the request that asked for it: fields, then invariants.

HTTP 200 is not success: the finish reason, every length, the echoed ids and every logprob are looked at.
Never raises; what is wrong becomes the Answer's outcome, and its detail says where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from soak.sglang.exchange import Answer, Candidates, GenerateRequest, Logprobs, Outcome, TokenIds
from soak.sglang.flat import Cut
from soak.sglang.logprobs import Fault, broken_invariant, malformed, read_candidates, read_entries, read_ids

_DETAIL = 500  # characters kept of a server's own words


def read_answer(value: object, request: GenerateRequest, index: int, lists: Sequence[Cut]) -> Answer:
    """The Answer for prompt ``index``. ``lists``: what ``logprobs.parse`` left out of the same body."""
    answer = Answer(rid=request.rids[index], outcome=Outcome.OK)
    try:
        _read(answer, value, request, index, lists)
    except Fault as fault:
        answer.outcome, answer.detail = fault.outcome, fault.detail
        answer.breaks_invariant = fault.breaks_invariant
    return answer


def error_in(value: object) -> str | None:
    """The message of an error object, None if the value is not one."""
    if not isinstance(value, dict):
        return None
    if value.get("error") is None and value.get("object") != "error":
        return None
    return error_text(value)


def error_text(value: object) -> str:
    """The words in any of the error shapes SGLang, FastAPI and gateways use, at most 500 characters."""
    for _ in range(4):
        if not isinstance(value, dict):
            break
        inner = [value[k] for k in ("error", "message", "detail", "msg") if value.get(k) is not None]
        if not inner:
            break
        value = inner[0]
    if isinstance(value, dict | list):  # never printed whole: it may be 50 MB, or nest a thousand deep
        text = f"{'an object with' if isinstance(value, dict) else 'a list of'} {len(value)} entries"
    else:
        text = value if isinstance(value, str) else str(value)
    return " ".join(text[: 4 * _DETAIL].split())[:_DETAIL]


def finished(value: object) -> bool:
    """Whether a streamed answer object is the last one of its prompt."""
    meta = value.get("meta_info") if isinstance(value, dict) else None
    return isinstance(meta, dict) and meta.get("finish_reason") is not None


def count(fields: Mapping[str, object], name: str) -> int:
    """A non-negative integer field. Raises Fault when it is missing or something else."""
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise malformed(f"{name} is {'missing' if value is None else repr(value)[:60]}, not a count")
    return value


def _read(answer: Answer, value: object, request: GenerateRequest, index: int, lists: Sequence[Cut]) -> None:
    message = error_in(value)
    if message is not None:
        raise Fault(Outcome.IN_BAND_ERROR, message)
    if not isinstance(value, dict):
        raise malformed(f"answer {index} is not an object")
    meta = value.get("meta_info")
    if not isinstance(meta, dict):
        raise malformed("answer without meta_info: not SGLang's /generate")
    rid = meta.get("id")
    if rid is not None and rid != answer.rid:
        raise broken_invariant(f"answer of another request: sent rid {answer.rid}, got {str(rid)[:80]}")
    rank = meta.get("dp_rank")
    if type(rank) is int and rank >= 0:
        answer.dp_rank = rank
    aborted = _read_finish(answer, meta.get("finish_reason"))
    if aborted is None:
        _read_counts(answer, meta)
    else:  # an abort's fields are as far as the server had got: any may be missing
        answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens = (
            v if type(v := meta.get(k)) is int and v >= 0 else 0
            for k in ("prompt_tokens", "completion_tokens", "cached_tokens")
        )
    text = value.get("text")
    if text is not None and not isinstance(text, str):
        raise malformed("text is not a string")
    answer.text = text
    ids = value.get("output_ids", [] if aborted else None)
    if not isinstance(ids, list):
        raise malformed("no list of output_ids")
    answer.output_ids = read_ids(ids, "output_ids")
    if aborted is not None:
        raise _abort(answer, aborted)
    if not answer.finish_reason:  # what had come by then is kept
        raise malformed("answer without a finish_reason")
    _check_lengths(answer, request, index)
    if request.return_logprob:
        _read_logprobs(answer, meta, request, index, lists)


def _read_finish(answer: Answer, reason: object) -> dict[str, object] | None:
    """Sets finish_reason, if there is one; the reason object if it is an abort."""
    if reason is None:
        return None
    if isinstance(reason, str):
        reason = {"type": reason}
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        raise malformed("finish_reason is not an object with a type")
    answer.finish_reason = reason["type"]
    return reason if answer.finish_reason == "abort" else None


def _abort(answer: Answer, reason: dict[str, object]) -> Fault:
    """An abort by its status code: refused before any work, failed, or given up."""
    status = reason.get("status_code")
    detail = error_text(reason.get("message") or "aborted without a message")
    if type(status) is int:
        detail = f"abort with status {status}: {detail}"
        if 400 <= status < 500 or (status == 503 and answer.completion_tokens == 0):
            return Fault(Outcome.REJECTED, detail)
        if status >= 500:
            return Fault(Outcome.SERVER_ERROR, detail)
    return Fault(Outcome.ABORTED, detail)


def _read_counts(answer: Answer, meta: dict[str, object]) -> None:
    answer.prompt_tokens = count(meta, "prompt_tokens")
    answer.completion_tokens = count(meta, "completion_tokens")
    answer.cached_tokens = count(meta, "cached_tokens")
    if meta.get("num_retractions") is not None:
        answer.num_retractions = count(meta, "num_retractions")
    details = meta.get("cached_tokens_details")
    if isinstance(details, dict):
        answer.cached_details = {str(k): v for k, v in details.items() if type(v) is int}


def _check_lengths(answer: Answer, request: GenerateRequest, index: int) -> None:
    prompt = request.prompts[index]
    if not isinstance(prompt, str) and answer.prompt_tokens != len(prompt):
        raise broken_invariant(f"prompt_tokens is {answer.prompt_tokens}, {len(prompt)} ids were sent")
    if answer.completion_tokens != answer.output_ids.size:
        raise broken_invariant(
            f"completion_tokens is {answer.completion_tokens}, output_ids has {answer.output_ids.size}"
        )
    if answer.completion_tokens > request.max_new_tokens:
        raise broken_invariant(
            f"{answer.completion_tokens} tokens generated, {request.max_new_tokens} asked for"
        )
    if answer.cached_tokens > answer.prompt_tokens:
        raise broken_invariant(
            f"cached_tokens is {answer.cached_tokens} of {answer.prompt_tokens} prompt_tokens"
        )


def _read_logprobs(
    answer: Answer, meta: dict[str, object], request: GenerateRequest, index: int, lists: Sequence[Cut]
) -> None:
    """Fills the logprob arrays, then checks count, ids and nulls, in this order."""
    for name in ("input_token_logprobs", "output_token_logprobs"):
        if meta.get(name) is None:
            raise Fault(Outcome.INVALID_LOGPROBS, f"{name} is missing although logprobs were asked for")
    answer.input_token_ids, answer.input_logprobs = read_entries(
        meta["input_token_logprobs"], lists, "input_token_logprobs"
    )
    out_ids, answer.output_logprobs = read_entries(
        meta["output_token_logprobs"], lists, "output_token_logprobs"
    )
    _check_input(answer, request, index)
    if request.max_new_tokens == 0:
        # co-batched with decoding requests, SGLang lists the one token that it sampled and threw away
        answer.output_logprobs = answer.output_logprobs[:0]
        _read_candidates(answer, meta, request, lists)
        return
    if out_ids.size != answer.output_ids.size:
        raise Fault(
            Outcome.INVALID_LOGPROBS,
            f"{out_ids.size} output logprobs for {answer.output_ids.size} output ids",
        )
    _same_ids(out_ids, answer.output_ids, "output logprob", 0)
    _no_nulls(answer.output_logprobs, out_ids, "output logprob", 0, answer.prompt_tokens)
    _read_candidates(answer, meta, request, lists)


def _read_candidates(
    answer: Answer, meta: dict[str, object], request: GenerateRequest, lists: Sequence[Cut]
) -> None:
    inputs, outputs = answer.input_logprobs.size, answer.output_logprobs.size
    if request.top_logprobs_num > 0:
        k = request.top_logprobs_num
        answer.input_top = _candidates(meta, lists, "input_top_logprobs", k, due=inputs, free=1)
        if request.max_new_tokens:
            answer.output_top = _candidates(meta, lists, "output_top_logprobs", k, due=outputs)
    if request.token_ids_logprob:
        k = len(request.token_ids_logprob)
        answer.input_asked = _candidates(meta, lists, "input_token_ids_logprobs", k, due=inputs, free=1)
        if request.max_new_tokens:
            answer.output_asked = _candidates(meta, lists, "output_token_ids_logprobs", k, due=outputs)


def _check_input(answer: Answer, request: GenerateRequest, index: int) -> None:
    got = answer.input_token_ids.size
    start = request.logprob_start_len
    if start is not None and start >= 0:
        due = max(0, answer.prompt_tokens - start)
        if got != due:
            raise Fault(
                Outcome.INVALID_LOGPROBS,
                f"{got} input logprobs where prompt_tokens - logprob_start_len = {due} are due",
            )
    if got > answer.prompt_tokens:
        raise Fault(
            Outcome.INVALID_LOGPROBS, f"{got} input logprobs for {answer.prompt_tokens} prompt tokens"
        )
    first = answer.prompt_tokens - got
    prompt = request.prompts[index]
    if not isinstance(prompt, str):
        _same_ids(answer.input_token_ids, np.asarray(prompt[first:]), "input logprob", first)
    _no_nulls(answer.input_logprobs, answer.input_token_ids, "input logprob", 1, first)


def _same_ids(got: TokenIds, sent: TokenIds, what: str, offset: int) -> None:
    differ = np.flatnonzero(got != sent)
    if differ.size and not got[differ].any() and np.unique(sent[differ]).size == 1:
        return  # SGLang names the vocabulary's last id 0 beside its logprob, which is the right one
    if differ.size:
        i = int(differ[0])
        raise broken_invariant(
            f"{what} {i} (position {offset + i}) is of token {got[i]}, sent or returned was {sent[i]}; "
            f"{differ.size} of {got.size} ids differ"
        )


def _no_nulls(values: Logprobs, ids: TokenIds, what: str, free: int, offset: int) -> None:
    """No NaN or infinity from entry ``free`` on: a null is how the server writes either."""
    bad = np.flatnonzero(~np.isfinite(values[free:]))
    if bad.size:
        i = int(bad[0]) + free
        raise Fault(
            Outcome.INVALID_LOGPROBS,
            f"{what} {i} of {values.size} (token {ids[i]}, position {offset + i}) is null: NaN or infinity "
            f"on the server; {bad.size} such",
        )


def _candidates(
    meta: dict[str, object], lists: Sequence[Cut], name: str, k: int, *, due: int, free: int = 0
) -> Candidates:
    """One list of ``due`` rows, of which the first ``free`` may be null."""
    if meta.get(name) is None:
        raise Fault(Outcome.INVALID_LOGPROBS, f"{name} is missing although it was asked for")
    found = read_candidates(meta[name], lists, name, k)
    if len(found.logprobs) != due:
        raise Fault(Outcome.INVALID_LOGPROBS, f"{name} has {len(found.logprobs)} rows, {due} are due")
    bad = np.flatnonzero(~np.isfinite(found.logprobs[free:]).all(axis=1))
    if bad.size:
        raise Fault(Outcome.INVALID_LOGPROBS, f"{name}: row {int(bad[0]) + free} of {due} holds a null")
    return found
