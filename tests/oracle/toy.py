"""A session on a toy server in memory: logprobs that depend on the whole prefix, a prefix cache, knobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from soak.sglang.exchange import Answer, Candidates, Outcome, TokenIds


def logprob(prefix: bytes, token: int) -> float:
    word = int.from_bytes(
        hashlib.blake2b(prefix + token.to_bytes(4, "little"), digest_size=4).digest(), "big"
    )
    return -0.01 - 8.0 * word / 2**32


def candidates(answer: Answer, k: object) -> Candidates | None:
    """Beside each token k others, each with half of what is left: all of them together a distribution."""
    if not isinstance(k, int) or not k:
        return None
    halves = np.arange(1, k + 1)
    left = np.log1p(-np.exp(answer.input_logprobs))[:, None]
    ids = np.where(np.isnan(left), -1, answer.input_token_ids[:, None] + halves)
    return Candidates(ids.astype(np.int32), left - halves * np.log(2.0))


class ToySession:
    """Stands where a Session stands. ``corrupt(namespace, cached)`` adds nats to a pass that resumed."""

    def __init__(self) -> None:
        self.prompts_in_flight = 0
        self.cached: dict[str | None, list[bytes]] = {}
        self.corrupt: Callable[[str | None, int], float] = lambda namespace, cached: 0.0
        self.forget_before: str = ""
        self.cold_hits = False
        self.fail: Callable[[dict[str, object]], Answer | None] = lambda fields: None
        self.requests: list[dict[str, object]] = []
        self._serial = 0

    def rank_of(self, index: int) -> int | None:
        return None

    def namespace(self) -> str:
        self._serial += 1
        return f"ns-{self._serial}"

    def hit(self, ids: TokenIds, namespace: str | None, limit: int) -> int:
        best = 0
        places = list(self.cached) if self.cold_hits else [namespace]
        for place in places:
            for kept in self.cached.get(place, []):
                held = np.frombuffer(kept, np.int32)
                n = min(len(held), len(ids), limit)
                differ = np.flatnonzero(held[:n] != ids[:n])
                best = max(best, int(differ[0]) if differ.size else n)
        return best

    async def generate(self, prompts: Iterable[TokenIds], **fields: object) -> tuple[Answer, ...]:
        (ids,) = prompts
        self.requests.append({"ids": ids, **fields})
        failed = self.fail(self.requests[-1])
        if failed is not None:
            return (failed,)
        namespace = fields.get("extra_key")
        assert namespace is None or isinstance(namespace, str)
        start = fields.get("logprob_start_len")
        limit = len(ids) - 1 if not isinstance(start, int) else min(len(ids) - 1, start)
        cached = self.hit(ids, namespace, limit)
        raw = ids.astype(np.int32)
        extra = self.corrupt(namespace, cached) if cached else 0.0
        answer = Answer("r", Outcome.OK, prompt_tokens=len(ids), cached_tokens=cached)
        if fields.get("return_logprob") and start is not None:
            assert isinstance(start, int)
            values = [float("nan")]
            for i in range(start + 1, len(ids)):
                values.append(logprob(raw[:i].tobytes(), int(ids[i])) + extra)
            answer.input_logprobs = np.array(values)
            answer.input_token_ids = raw[start:]
            answer.input_top = candidates(answer, fields.get("top_logprobs_num", 0))
        wanted = fields.get("max_new_tokens", 0)
        assert isinstance(wanted, int)
        if wanted:
            seed = int.from_bytes(hashlib.blake2b(raw.tobytes(), digest_size=4).digest(), "big")
            sampled = self._serial if fields.get("temperature") else 0
            answer.output_ids = np.random.default_rng(seed + sampled).integers(
                10, 900, wanted, dtype=np.int32
            )
            answer.completion_tokens = wanted
            if fields.get("return_logprob"):
                whole = np.concatenate([raw, answer.output_ids])
                places = range(len(raw), len(whole))
                answer.output_logprobs = np.array(
                    [logprob(whole[:i].tobytes(), int(whole[i])) for i in places]
                )
        written = np.concatenate([raw, answer.output_ids[:-1]]) if wanted else raw
        self.cached.setdefault(namespace, []).append(written.tobytes())
        return (answer,)
