"""The second half of the table: aborts, flushes, pauses, and what the server says about itself.

Rids are each case's own: 0.5.18 aborts the rid of a stream once more, two seconds after the stream has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from soak.sglang.fingerprint import fingerprint_of
from soak.sglang.server_metrics import parse_metrics

from .talk import FAR, Case, Json, Later, Said, Talk, prompt, type_name

FILL = 1000
"""Tokens nobody waits for, few enough for sixteen requests to be let into the pool at once."""

# -- control --------------------------------------------------------------------------------------------


def _begun(talk: Talk, rid: str, tokens: int = FAR, seed: int = 60) -> Later:
    """A stream that is under way: everything sent before it runs too."""
    later = talk.later(prompt(20, seed), tokens, stream=True, rid=rid)
    later.until_tokens(3)
    return later


def _abort_running(name: str, talk: Talk) -> Json:
    one, two = f"parity-{name}-one", f"parity-{name}-two"
    waiting = talk.later(prompt(40, 61), FAR, rid=one)
    stream = _begun(talk, two)
    assert not waiting.ended
    # the stream runs, so the other, which came first, is past the queue; a moment passes all the same
    said = [talk.abort(one)]
    while not waiting.wait(0.1):
        talk.abort(one)
    said.append(waiting.cut_said())
    stream.until_tokens(stream.tokens + 3)
    return [*said, talk.abort(two), stream.cut_said(), talk.cached(prompt(20, 60))]


def _abort_scored(talk: Talk) -> Json:
    """Aborted while it streams logprobs: keys and types only, since it is long."""
    stream = talk.later(prompt(20, 62), FAR, stream=True, rid="parity-c", return_logprob=True)
    stream.until_tokens(3)
    talk.abort("parity-c")
    last = stream.cut_said()["body"]["prompt -1"]["last"]
    return {key: type_name(value) for key, value in last["meta_info"].items()}


def _abort_queued(talk: Talk) -> Json:
    """All places taken; what is queued behind is aborted there."""
    rids = [f"parity-fill-{i:02d}" for i in range(20)]
    full = talk.later([prompt(20, 70 + i) for i in range(20)], FILL, rid=rids)
    while talk.waiting() == 0:
        assert not full.ended
    said = []
    for stream in (False, True):
        rid = f"parity-queued-{stream}"
        queued = talk.later(prompt(20, 90), 3, rid=rid, stream=stream)
        while not queued.wait(0.1):
            talk.abort(rid)
        said.append(queued.said())
    for rid in rids:
        talk.abort(rid)
    full.cut_said()
    return said


def _places(talk: Talk) -> Json:
    """How many of more requests than --max-running-requests run at once."""
    full = talk.later([prompt(20, 70 + i) for i in range(20)], FILL, rid="parity-place")
    while talk.waiting() == 0:
        assert not full.ended
    waiting = min(talk.waiting() for _ in range(40))
    assert not full.ended
    talk.abort("", abort_all=True)
    return [waiting, full.cut_said()["status"]]


def _abort_prefix(talk: Talk) -> Json:
    """A rid that is live takes along those that begin with it; one that is not live takes nobody."""
    short, longer, other = (
        _begun(talk, rid, seed=61 + i) for i, rid in enumerate(["parity-1", "parity-10", "parity-2"])
    )
    said = [talk.abort("parity-1"), short.cut_said(), longer.cut_said()]
    for nobody in ("parity-", "nobody", ""):
        said.append(talk.abort(nobody))
        other.until_tokens(other.tokens + 10)
    return [*said, talk.abort("parity-2"), other.cut_said()]


def _abort_all(talk: Talk) -> Json:
    streams = [_begun(talk, f"parity-all-{i}", seed=64 + i) for i in range(2)]
    waiting = talk.later(prompt(25, 66), FAR, rid="parity-all-w")
    last = _begun(talk, "parity-all-l", seed=67)
    said = [talk.abort("", abort_all=True), *(stream.cut_said() for stream in streams), last.cut_said()]
    return [*said, waiting.cut_said()]


def _abort_one_of_a_batch(talk: Talk) -> Json:
    """The others of the body go on, and the answer waits for them."""
    rids = ["parity-one", "parity-two"]
    batch = talk.later([prompt(20, 68), prompt(30, 69)], FAR, rid=rids, stream=True)
    batch.until_tokens(2)
    said = [talk.abort("parity-one")]
    batch.until(lambda events: any(e["meta_info"]["finish_reason"] for e in events if e.get("index") == 0))
    assert not batch.ended
    return [*said, talk.abort("parity-two"), batch.cut_said()]


BODIES: list[Json] = [{}, {"abort_all": False}, {"rid": None}, []]


def _abort_bodies(talk: Talk) -> Json:
    return [talk.call("POST", "/abort_request", body) for body in BODIES]


def _flush_idle(talk: Talk) -> Json:
    return [
        *(talk.call(method, "/flush_cache") for method in ("GET", "POST")),
        *(talk.call("POST", f"/flush_cache?timeout={timeout}") for timeout in ("0", "0.5", "20", "-1", "x")),
    ]


def _flush_busy(talk: Talk) -> Json:
    stream = _begun(talk, "parity-busy", tokens=150)
    said = [talk.call("POST", "/flush_cache"), talk.call("POST", "/flush_cache?timeout=0.2")]
    assert not stream.ended
    said.append(talk.call("POST", "/flush_cache?timeout=30"))
    return [*said, stream.wait(0.5), stream.said(), talk.cached(prompt(20, 60))]


def _paused(mode: str, name: str, talk: Talk) -> Json:
    """A pause in mid-stream, a request that comes meanwhile, a flush, and on."""
    stream = _begun(talk, f"parity-{name}-stream", tokens=60)
    said: Said = {"pause": talk.call("POST", "/pause_generation", {"mode": mode})}
    meanwhile = talk.later(prompt(33, 65), 2, rid=f"parity-{name}-meanwhile")
    said["answered while paused"] = meanwhile.wait(0.5)
    if mode != "retract":
        said["flush while paused"] = talk.call("POST", "/flush_cache")
    said["continue"] = talk.call("POST", "/continue_generation", {})
    said["stream"] = stream.cut_said() if mode == "abort" else stream.said()
    said["meanwhile"] = meanwhile.said()
    return said


def _flush_retracted(talk: Talk) -> Json:
    """A flush while what was retracted waits for the pause to end."""
    stream = _begun(
        talk, "parity-flushed", tokens=400
    )  # still under way when the pause comes, on a busy machine too
    talk.call("POST", "/pause_generation", {"mode": "retract"})
    said = talk.call("POST", "/flush_cache")
    talk.call("POST", "/continue_generation", {})
    return [said, stream.said()["body"]["prompt -1"]["last"]["meta_info"]["num_retractions"]]


def _pause_idle(talk: Talk) -> Json:
    said = []
    body: dict[str, Json]
    for body in ({"mode": "retract"}, {"mode": "in_place"}, {"mode": "abort"}, {}):
        said.append(talk.call("POST", "/pause_generation", body))
        said.append(talk.call("POST", "/continue_generation", {}))
    return [*said, talk.call("POST", "/pause_generation", {"mode": "sideways"}), talk.cached(prompt(9, 1), 1)]


CONTROL: dict[str, Case] = {
    "abort running": Case(partial(_abort_running, "running")),
    "abort scored": Case(_abort_scored),
    "abort queued": Case(_abort_queued),
    "places": Case(_places),
    "abort by prefix": Case(_abort_prefix),
    "abort all": Case(_abort_all),
    "abort one of a batch": Case(_abort_one_of_a_batch),
    "abort bodies": Case(_abort_bodies),
    "flush idle": Case(_flush_idle),
    "flush busy": Case(_flush_busy),
    "flush while retracted": Case(_flush_retracted),
    "pause retract": Case(partial(_paused, "retract", "retract")),
    "pause in_place": Case(partial(_paused, "in_place", "in_place")),
    "pause abort": Case(partial(_paused, "abort", "abort")),
    "pause idle": Case(_pause_idle),
}

# -- what the server says about itself ------------------------------------------------------------------

READ = [
    "model_path",
    "served_model_name",
    "version",
    "internal_states",
    "dp_size",
    "is_embedding",
    "skip_tokenizer_init",
    "enable_deterministic_inference",
    "disable_radix_cache",
    "uses_mamba_radix_cache",
    "mamba_radix_cache_strategy",
    "mamba_track_interval",
    "page_size",
    "chunked_prefill_size",
    "max_running_requests",
    "max_total_tokens",
    "max_total_num_tokens",
    "max_req_input_len",
    "context_length",
    "api_key",
    "admin_api_key",
    "status",
]
"""Fields of /server_info that soak goes by, and the two it must never keep."""
READ_OF_STATE = (
    "effective_max_running_requests_per_dp",
    "_mamba_cache_chunk_size",
    "last_gen_throughput",
    "api_key",
)
PLAIN = frozenset(
    [
        "dp_size",
        "is_embedding",
        "skip_tokenizer_init",
        "disable_radix_cache",
        "uses_mamba_radix_cache",
        "page_size",
        "chunked_prefill_size",
        "max_running_requests",
        "max_total_num_tokens",
        "max_req_input_len",
        "status",
    ]
)
"""Those whose value, too, must be the same: the two are configured alike."""


def _server_info(talk: Talk) -> Json:
    info = talk.door.ask("GET", "/server_info")["body"]
    (state,) = info["internal_states"]
    assert talk.door.ask("GET", "/get_server_info")["body"].keys() == info.keys()
    return {
        "read": {
            name: info[name] if name in PLAIN else type_name(info[name]) for name in READ if name in info
        },
        "read of the state": {name: type_name(state[name]) for name in READ_OF_STATE if name in state},
        "memory": {name: type_name(value) for name, value in state["memory_usage"].items()},
    }


def _fingerprint(talk: Talk) -> Json:
    """Types of what soak's fingerprint takes of it."""
    info, model = (talk.door.ask("GET", path)["body"] for path in ("/server_info", "/model_info"))
    return {name: type_name(value) for name, value in fingerprint_of(info, model).as_dict().items()}


def _metrics(talk: Talk) -> Json:
    """Which of soak's numbers there are after a hit, an abort and a retraction, with kinds and labels."""
    ids = prompt(300, 80)
    talk.cached(ids, 1)
    talk.cached(ids, 1)
    _paused("retract", "metrics", talk)
    _abort_running("metrics", talk)
    text = talk.door.ask("GET", "/metrics")["body"]
    read = parse_metrics(text)
    found = {name: "number" for name in read.__slots__ if isinstance(getattr(read, name), float)}
    return {"read": found, "sources": sorted(read.cached_tokens_total), "families": _families(text)}


def _families(text: str) -> Mapping[str, Json]:
    """Kind and labels of every sglang: family; ``le`` belongs to the text format."""
    kinds = {
        line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE sglang")
    }
    labels: dict[str, set[str]] = {name: set() for name in kinds}
    for line in text.splitlines():
        name = line.split("{")[0]
        if line.startswith("sglang") and "{" in line:
            family = next(
                (f for f in (name, name.removesuffix("_sum"), name.removesuffix("_count")) if f in kinds),
                None,
            )
            if family is not None:
                labels[family] |= {
                    part.split("=")[0] for part in line[len(name) + 1 :].split("}")[0].split('",')
                }
    return {name: [kinds[name], sorted(labels[name] - {"le", ""})] for name in sorted(kinds)}


REPORTS: dict[str, Case] = {
    "server_info": Case(_server_info),
    "fingerprint": Case(_fingerprint),
    "model_info": Case(lambda talk: [talk.call("GET", path) for path in ("/model_info", "/get_model_info")]),
    "models": Case(lambda talk: talk.call("GET", "/v1/models")),
    "loads": Case(lambda talk: talk.call("GET", "/v1/loads?include=core")),
    "metrics": Case(_metrics),
}
