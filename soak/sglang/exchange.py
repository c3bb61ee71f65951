"""What passes between soak and the server: one request, its answers, and the closed set of outcomes.

Nothing here does I/O. Logprobs are float64 arrays in nats; a ``null`` from the server (which is how SGLang
writes NaN and infinity) is NaN in the array, so that no caller can take it for a number.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float64]

_NO_IDS: TokenIds = np.empty(0, np.int32)
_NO_LOGPROBS: Logprobs = np.empty(0, np.float64)


def _no_ids() -> TokenIds:
    return _NO_IDS  # of no length: there is nothing in it that anybody could change


def _no_logprobs() -> Logprobs:
    return _NO_LOGPROBS


class Outcome(enum.StrEnum):
    """Everything that can become of a request. Closed: the client never raises for what a server can do."""

    OK = "ok"
    REJECTED = "rejected"  # refused before any work: 4xx, 429, 503 queue full
    ABORTED = "aborted"  # finish_reason abort
    TAKEN_BACK = "taken_back"  # aborted or hung up by us, as the plan wanted it
    SERVER_ERROR = "server_error"  # 5xx
    IN_BAND_ERROR = "in_band_error"  # HTTP 200 (or a stream already begun) that carries an error object
    DISCONNECTED = "disconnected"  # no connection, reset, stream cut short, no [DONE]
    TIMED_OUT = "timed_out"
    MALFORMED = "malformed"  # not what SGLang's protocol says: not JSON, missing fields, wrong lengths
    INVALID_LOGPROBS = "invalid_logprobs"  # null where a number must stand, or not one per token

    @property
    def settled(self) -> bool:
        """Whether the server has surely let go of the request."""
        return self not in (Outcome.DISCONNECTED, Outcome.TIMED_OUT, Outcome.MALFORMED)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One POST to ``/generate``: a single prompt, or several in one batched request.

    prompts: token ids (int32 arrays) or text, all of one kind; rids: one per prompt, fixed width, since the
    server aborts by prefix. ``logprob_start_len`` counts tokens: position ``logprob_start_len`` itself has no
    logprob, the first comparable one is the next. ``routed_dp_rank`` picks a rank of a data-parallel server.
    None leaves a field to the server. lora_path: the name of an adapter; json_schema: what the output must
    meet, as text.
    """

    prompts: tuple[TokenIds | str, ...]
    rids: tuple[str, ...]
    max_new_tokens: int = 16
    temperature: float = 0.0
    ignore_eos: bool = True
    sampling_seed: int | None = None
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] | None = None
    extra_key: str | None = None
    lora_path: str | None = None
    json_schema: str | None = None
    stream: bool = False
    timeout_s: float = 120.0
    routed_dp_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Logprobs of several candidate tokens at each of n positions: the k best, or those asked for by id.

    ids: int32 [n, k], -1 where the server gave none (the first input position); logprobs: float64 [n, k] in
    nats, NaN there.
    """

    ids: npt.NDArray[np.int32]
    logprobs: Logprobs


@dataclass(slots=True)
class Answer:
    """What came back for one prompt of one request.

    Times are seconds of ``time.monotonic()``; ``first_token_s`` is None without streaming. ``chunk_s`` holds
    the arrival time of every streamed chunk. ``input_logprobs[i]`` belongs to ``input_token_ids[i]``, which
    are the prompt's tokens from ``logprob_start_len`` on; entry 0 is NaN by the server's design.
    """

    rid: str
    outcome: Outcome
    detail: str = ""
    breaks_invariant: bool = False  # well-formed, and about other tokens or another request: an alarm
    http_status: int | None = None
    sent_s: float = 0.0
    first_token_s: float | None = None
    finished_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cached_details: dict[str, int] = field(default_factory=dict)
    num_retractions: int = 0
    finish_reason: str = ""
    output_ids: TokenIds = field(default_factory=_no_ids)
    text: str | None = None
    input_token_ids: TokenIds = field(default_factory=_no_ids)
    input_logprobs: Logprobs = field(default_factory=_no_logprobs)
    output_logprobs: Logprobs = field(default_factory=_no_logprobs)
    chunk_s: list[float] = field(default_factory=list)
    worker: str = ""  # who answered, by a short name, where a router or a data-parallel server says so
    dp_rank: int | None = None
    input_top: Candidates | None = None  # with top_logprobs_num; rows as in input_logprobs
    output_top: Candidates | None = None
    input_asked: Candidates | None = None  # with token_ids_logprob
    output_asked: Candidates | None = None

    @property
    def ok(self) -> bool:
        """Whether the answer can be used."""
        return self.outcome is Outcome.OK
