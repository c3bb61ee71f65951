"""The table of what is asked of a real server and of a simulator: one name, one conversation, what it said.

A case begins with an empty cache, on a server nobody else uses, and must leave nothing running. No case sends
what ends SGLang 0.5.18 (ids outside the vocabulary, an empty prompt alone in a batch, a ``logprob_start_len``
under -1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .recorder import asking
from .talk import ATTENTION, FAR, Case, Json, Said, Talk, prompt, type_name

CHUNK = 256

# -- shapes of answers ----------------------------------------------------------------------------------

EVERY_LOGPROB = {
    "logprob_start_len": 3,
    "top_logprobs_num": 2,
    "token_ids_logprob": [5, 6],
    "return_logprob": True,
}
PAIR = [prompt(30, 11), prompt(7, 12)]


def _once(ids: Json, tokens: int, **fields: Json) -> Callable[[Talk], Json]:
    return lambda talk: talk.generate(ids, tokens, **fields)


SHAPES: dict[str, Case] = {
    "plain": Case(_once(prompt(30, 1), 3, rid="parity-000001")),
    "without a rid": Case(_once(prompt(30, 1), 3)),
    "one token": Case(_once(prompt(30, 2), 1)),
    "no tokens": Case(_once(prompt(30, 3), 0)),
    "no tokens, scored": Case(_once(prompt(30, 3), 0, return_logprob=True, logprob_start_len=3)),
    "scored": Case(_once(prompt(30, 4), 3, return_logprob=True, logprob_start_len=3)),
    "scored without a start": Case(_once(prompt(30, 4), 3, return_logprob=True)),
    "every logprob": Case(_once(prompt(30, 5), 3, **EVERY_LOGPROB)),
    "every logprob, no tokens": Case(_once(prompt(30, 5), 0, **EVERY_LOGPROB)),
    "asked ids without a start": Case(_once(prompt(30, 5), 1, return_logprob=True, token_ids_logprob=[5])),
    "asked ids without logprobs": Case(_once(prompt(30, 5), 1, token_ids_logprob=[5])),
    "last id of the vocabulary": Case(_once([5, 999, 7, 998], 0, return_logprob=True, logprob_start_len=0)),
    "unknown key": Case(_once(prompt(30, 6), 1, frobnicate=True)),
    "ids and text": Case(_once(prompt(30, 6), 1, text="hello")),
    "batch": Case(_once(PAIR, 3, rid=["parity-000001", "parity-000002"])),
    "batch, one rid": Case(_once(PAIR, 3, rid="parity-1")),
    "batch of one": Case(_once(PAIR[:1], 3)),
    "batch, scored": Case(_once(PAIR, 2, **EVERY_LOGPROB)),
    "batch, a value for each": Case(
        _once(PAIR, 2, return_logprob=[True, False], logprob_start_len=[4, -1], extra_key=["a", "b"])
    ),
    "stream": Case(_once(prompt(30, 7), 4, stream=True, rid="parity-000003")),
    "stream of one token": Case(_once(prompt(30, 7), 1, stream=True)),
    "stream of none": Case(_once(prompt(30, 7), 0, stream=True)),
    "stream, scored": Case(_once(prompt(30, 8), 3, stream=True, **EVERY_LOGPROB)),
    "batched stream": Case(_once(PAIR, 3, stream=True, rid=["parity-000004", "parity-000005"])),
    "batched stream of one": Case(_once(PAIR[:1], 3, stream=True)),
    "batched stream, scored": Case(_once(PAIR, 3, stream=True, return_logprob=True, logprob_start_len=2)),
    "long, several chunks": Case(_once(prompt(600, 9), 2, return_logprob=True, logprob_start_len=598)),
}


def _stop_token(talk: Talk) -> Json:
    """Any token stops it: how a request ends before its length."""
    sampling = {"max_new_tokens": 9, "temperature": 0, "stop_token_ids": list(range(1000))}
    said = talk.call("POST", "/generate", {"input_ids": prompt(30, 10), "sampling_params": sampling})
    reason = said["body"]["meta_info"]["finish_reason"]
    reason["matched"] = type_name(reason["matched"])
    return said


SHAPES["stop token"] = Case(_stop_token)

# -- cached_tokens --------------------------------------------------------------------------------------


def _starts(length: int, talk: Talk) -> Json:
    """The same prompt from every start: what is cached is bounded by what must be scored."""
    ids = prompt(length, length)
    said: Said = {"first": talk.cached(ids, 1), "again": talk.cached(ids), "scored": talk.scored(ids, None)}
    for start in (-1, 0, 1, 100, 255, 256, 257, 300, 511, 512, 513, length - 2, length - 1, length):
        if start <= length:
            said[str(start)] = _scored_from(talk, ids, start)
    return said


def _scored_from(talk: Talk, ids: list[int], start: int) -> Json:
    """Cached tokens, number of entries and the first two: null, then a number."""
    said = talk.scored(ids, start)
    meta = said["body"]["meta_info"]
    entries = meta["input_token_logprobs"]
    return [meta["cached_tokens"], meta["cached_tokens_details"], len(entries), entries[:2]]


def _lengths(talk: Talk) -> Json:
    """Prompts around the chunk: asked again, and with more behind."""
    said: Said = {}
    for length in (1, 2, 63, 64, 65, 255, 256, 257, 258, 511, 512, 513, 600, 767, 769):
        ids = prompt(length, 1000 + length)
        more = [*ids, *prompt(40, 9)]
        said[str(length)] = [talk.cached(ids), talk.cached(ids), talk.cached(more), talk.cached(more[:-20])]
    return said


def _namespaces(field: str, talk: Talk) -> Json:
    ids = prompt(299, 20)
    return [
        talk.cached(ids, 0, **({field: key} if key else {})) for key in ("a", "b", "a", None, "b", "", None)
    ]


def _diverging(shared: int, talk: Talk) -> Json:
    """Another prompt with ``shared`` tokens in common, and what it leaves for a third."""
    ids = prompt(600, 21)
    other = [*ids[:shared], *prompt(633 - shared, 22)]
    third = [*other[: shared + 150], *prompt(80, 23)]
    return [
        talk.cached(ids, 1),
        talk.cached(other),
        talk.cached(other),
        talk.cached([*other, 7, 8]),
        talk.cached(third),
        talk.cached(ids[: shared + 30]),
        talk.cached([*ids, 9]),
    ]


def _decoded(length: int, tokens: int, talk: Talk) -> Json:
    """What was generated is in the cache, all but the last token."""
    ids = prompt(length, 24)
    whole = [*ids, *talk.output(ids, tokens)]
    said: Said = {}
    for name, asked in {
        "continued": [*whole, 5, 6, 7],
        "all of it": whole,
        "within": [*whole[: length + tokens // 2], 5, 6],
        "to the prompt": [*ids, 5, 6],
        "again": [*whole, 9, 8],
    }.items():
        said[name] = talk.cached(asked)
        said[f"{name}, located"] = _located(talk, asked)
    return said


def _located(talk: Talk, ids: list[int]) -> Json:
    return talk.scored(ids, len(ids) - 1)["body"]["meta_info"]["cached_tokens"]


def _three_turns(talk: Talk) -> Json:
    """A conversation that grows by what was generated and by what is said next."""
    ids, said = prompt(130, 25), []
    for turn in range(3):
        said.append(talk.cached([*ids, *prompt(5, 40 + turn)]))
        ids = [*ids, *talk.output(ids, 70), *prompt(33, 26 + turn)]
        said.append(talk.cached(ids))
    return said


def _twins(talk: Talk) -> Json:
    """The same prompt twice in one body, beside another."""
    ids = prompt(100, 27)
    return [
        talk.cached([ids, ids, prompt(60, 28)], 1),
        talk.cached([*ids, 5], 1),
        talk.cached([ids, [*ids, 9]]),
    ]


def _after_a_flush(talk: Talk) -> Json:
    ids = prompt(300, 29)
    said = [talk.cached(ids, 1), talk.cached(ids)]
    talk.flush()
    return [*said, talk.cached(ids), talk.cached(ids)]


def _batched_chunks(talk: Talk) -> Json:
    """Prompts of one body share the chunk: where a hybrid keeps states depends on what was left of it."""
    prompts = [prompt(n, 300 + n) for n in (300, 500, 700, 100, 900)]
    talk.generate(prompts, 1)
    return {len(ids): talk.cached([*ids, 5, 6]) for ids in prompts}


CACHING: dict[str, Case] = {
    "starts of 600": Case(partial(_starts, 600)),
    "starts of 200": Case(partial(_starts, 200)),
    "lengths": Case(_lengths),
    "namespaces by extra_key": Case(partial(_namespaces, "extra_key")),
    "namespaces by cache_salt": Case(partial(_namespaces, "cache_salt")),
    "diverging at 333": Case(partial(_diverging, 333)),
    "diverging at a chunk end": Case(partial(_diverging, 2 * CHUNK)),
    "diverging at 40": Case(partial(_diverging, 40)),
    "decoded, 100 + 50": Case(partial(_decoded, 100, 50)),
    "decoded, 600 + 300": Case(partial(_decoded, 600, 300)),
    "decoded, 256 + 1": Case(partial(_decoded, 256, 1)),
    "three turns": Case(_three_turns),
    "twins": Case(_twins),
    "after a flush": Case(_after_a_flush),
    "batched chunks": Case(_batched_chunks),
}

# -- refusals -------------------------------------------------------------------------------------------

LONG = [7] * 5000
OFF_VOCABULARY = 2147483647
REFUSED: dict[str, dict[str, Json]] = {
    "too long": asking(LONG, 1),
    "as long as the context": asking([7] * 4096, 1),
    "too many in all": asking([7] * 4000, 200),
    "over the longest input": asking([7] * 4090, 1),
    "start past the end": asking([7, 8], 1, return_logprob=True, logprob_start_len=3),
    "asked id off the vocabulary": asking([7], 1, return_logprob=True, token_ids_logprob=[OFF_VOCABULARY]),
    "negative asked id": asking([7], 1, return_logprob=True, token_ids_logprob=[-1]),
    "asked id off the vocabulary, unscored": asking([7], 1, token_ids_logprob=[OFF_VOCABULARY]),
    "no prompt": {"sampling_params": {"max_new_tokens": 1}},
    "empty prompt": asking([], 1),
    "text": {"text": "hello", "sampling_params": {"max_new_tokens": 1}},
    "empty text": {"text": "", "sampling_params": {"max_new_tokens": 1}},
    "float id": asking([5, 1.5], 1),
    "text as ids": asking("x", 1),
    "list as a body": [],  # type: ignore[dict-item]
    "unknown sampling parameter": {"input_ids": [5], "sampling_params": {"frobnicate": 1}},
    "negative max_new_tokens": {"input_ids": [5], "sampling_params": {"max_new_tokens": -1}},
    "negative temperature": {"input_ids": [5], "sampling_params": {"temperature": -1}},
    "top_p of 0": {"input_ids": [5], "sampling_params": {"top_p": 0}},
    "top_k of 0": {"input_ids": [5], "sampling_params": {"top_k": 0}},
    "one of a batch too long": asking([[5, 6], LONG], 1),
    "one of a batch with a bad start": asking([[5, 6], [5]], 1, return_logprob=True, logprob_start_len=2),
    "same rid twice in a batch": asking([[5], [6]], 1, rid=["parity-x", "parity-x"]),
    "rids fewer than prompts": asking([[5], [6]], 1, rid=["parity-x"]),
}
NOT_STREAMED = ("list as a body",)


def _refused(body: Json, talk: Talk) -> Json:
    return talk.call("POST", "/generate", body)


def _duplicate_rid(stream: bool, talk: Talk) -> Json:
    """The rid of a request that is still running."""
    rid = f"parity-twice-{stream}"
    first = talk.later(prompt(20, 50), FAR, stream=True, rid=rid)
    first.until_tokens(3)
    second = talk.generate(prompt(21, 51), 1, rid=rid, stream=stream)
    talk.abort(rid)
    return [second, first.cut_said()]


KEYLESS = (
    ("GET", "/health"),
    ("GET", "/health_generate"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
    ("GET", "/get_server_info"),
    ("GET", "/model_info"),
    ("GET", "/get_model_info"),
    ("GET", "/v1/models"),
    ("GET", "/v1/loads"),
    ("GET", "/nothing"),
    ("GET", "/generate"),
    ("POST", "/flush_cache"),
    ("POST", "/abort_request"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
)


def _doors(key: str | None, talk: Talk) -> Json:
    """Every path's status and content type; its body too where it is refused."""
    asking_like = Talk(talk.url, key) if key else talk
    said: Said = {}
    for method, path in KEYLESS:
        body: Json = {} if method == "POST" else None
        answer = asking_like.call(method, path, body, key=key is not None)
        said[f"{method} {path}"] = answer if answer["status"] >= 400 else [answer["status"], answer["type"]]
    generate = asking_like.call("POST", "/generate", asking([5], 1), key=key is not None)
    return {**said, "POST /generate": generate}


def _paths(talk: Talk) -> Json:
    said: Said = {}
    for method, path in KEYLESS:
        if method == "GET":
            answer = talk.call(method, path)
            said[path] = answer if answer["status"] >= 400 else [answer["status"], answer["type"]]
    said["broken JSON"] = talk.call("POST", "/generate", raw=b'{"input_ids": [1,2')
    said["empty body"] = talk.call("POST", "/generate", raw=b"")
    return said


REFUSALS: dict[str, Case] = {
    **{name: Case(partial(_refused, body)) for name, body in REFUSED.items()},
    **{
        f"{name}, streamed": Case(partial(_refused, {**body, "stream": True}))
        for name, body in REFUSED.items()
        if name not in NOT_STREAMED
    },
    "duplicate rid": Case(partial(_duplicate_rid, False)),
    "duplicate rid, streamed": Case(partial(_duplicate_rid, True)),
    "without the key": Case(partial(_doors, None), kinds=(ATTENTION,)),
    "with a wrong key": Case(partial(_doors, "wrong"), kinds=(ATTENTION,)),
    "paths and broken bodies": Case(_paths),
}
