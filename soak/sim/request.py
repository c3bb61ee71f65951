"""One request as the scheduler sees it: what was asked, what it holds in the pools, what has come out.

Requests are mutable and shared: under overlap, batches in flight refer to the same objects, as in SGLang.
Nothing here allocates or frees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.sim.numerics import F32, F64, I64
from soak.sim.radix import Namespace, Node

EOS = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. seed is honoured in exact mode only, as under deterministic inference.

    texts: what the answer must be one of, by its JSON schema; empty where anything may come.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    texts: tuple[bytes, ...] = ()


@dataclass(slots=True)
class InputLogprobs:
    """Scores of prompt tokens: position p of ``chosen`` belongs to prompt token start + 1 + p."""

    chosen: list[float] = field(default_factory=list)
    top: list[tuple[list[float], list[int]]] = field(default_factory=list)
    picked: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Backup:
    """What a retracted request took along to host memory: KV of its first ``length`` tokens, and its state.

    keys, values: shape (layers, length, width); short, conv, ssm: one slot's state, None if there is none.
    """

    length: int
    keys: F32
    values: F64
    state: tuple[F64, F64, F64] | None


@dataclass(slots=True, eq=False)
class Request:
    """A prompt on its way through the server. Token counts are tokens; ``seq`` numbers arrivals."""

    rid: str
    prompt: I64
    sampling: Sampling
    seq: int
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    lora: int = 0
    lora_name: str | None = None
    stream: bool = False
    arrived_s: float = 0.0
    started_s: float | None = None

    output: list[int] = field(default_factory=list)
    future: list[int] = field(default_factory=list)  # computed, result not processed yet (overlap)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[tuple[list[float], list[int]]] = field(default_factory=list)
    output_picked: list[list[float]] = field(default_factory=list)
    inputs: InputLogprobs | None = None
    input_done: bool = False
    finish: dict[str, Any] | None = None
    to_abort: bool = False
    reported: int = 0
    reported_inputs: bool = False

    row: int = 0
    kv_len: int = 0  # tokens whose KV is in the row
    allocated: int = 0  # tokens the row has slots for, whole pages
    protected: int = 0  # of those, tokens that belong to the tree
    node: Node | None = None
    node_state_held: bool = False
    resumed: bool = False  # the next extend is the first after a hit

    state_slot: int = 0
    initial_slot: int = 0  # where the next extend finds the state before it
    has_state: bool = False  # the working slot holds this request's state
    ping_pong: list[int] = field(default_factory=list)
    next_track: int = 0
    last_track: int = 0
    last_track_len: int | None = None
    branching_len: int | None = None
    window_branch_len: int | None = None

    cached: int = 0
    cached_device: int = 0
    cached_host: int = 0
    cached_counted: bool = False
    retractions: int = 0
    backup: Backup | None = None
    prefetched: tuple[Node, bool] | None = None
    prefetched_tokens: int = 0

    @property
    def ids(self) -> I64:
        """Prompt and output, shape (seq_len,)."""
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, np.int64)])

    @property
    def seq_len(self) -> int:
        """Tokens so far."""
        return len(self.prompt) + len(self.output)

    @property
    def launched_len(self) -> int:
        """Tokens so far, those whose result is still to be processed included."""
        return self.seq_len + len(self.future)

    @property
    def last_token(self) -> int:
        """What the next decode step reads."""
        return self.future[-1] if self.future else self.output[-1] if self.output else int(self.prompt[-1])

    @property
    def namespace(self) -> Namespace:
        """What keeps this request's prefixes apart from others with the same tokens."""
        return (self.extra_key, self.cache_salt, self.lora_name)

    @property
    def joined_namespace(self) -> Namespace:
        """SGLang #24638: key and adapter name joined into one string, where two tenants can meet."""
        return ((self.extra_key or "") + (self.lora_name or ""), self.cache_salt)

    @property
    def match_limit(self) -> int:
        """Longest prefix that may be taken from the cache.

        One token is always computed, and so is every scored one.
        """
        limit = self.seq_len - 1
        if self.return_logprob and self.logprob_start_len >= 0:
            limit = min(limit, self.logprob_start_len)
        return max(limit, 0)
