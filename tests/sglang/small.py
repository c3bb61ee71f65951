"""A small server that keeps a prefix cache by SGLang's rules, with one knob per way to be unusable.

Models only what a preflight can see: where requests resume, what comes back, what the server says of itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from soak.sglang.exchange import GenerateRequest
from tests.sglang import honest
from tests.sglang.misbehaving import Seen, serving


@dataclass
class Small:
    """kind: ``attention``, ``no_buffer`` or ``extra_buffer`` (states every ``state_chunk`` tokens)."""

    kind: str = "attention"
    vocab: int = 1000
    chunk: int = 256
    page: int = 1
    state_chunk: int = 64
    context: int = 4096
    ranks: int = 1
    separate_namespaces: bool = True
    start_limits_match: bool = True
    start_limits_answer: bool = True
    logprobs: bool = True
    caches: bool = True
    checks_candidates: bool = True
    info: dict[str, Any] = field(default_factory=dict)
    spent: int = 0
    _kept: list[tuple[int, str, list[int], set[int]]] = field(default_factory=list)
    _turn: int = 0

    def server_info(self) -> dict[str, Any]:
        return {
            "version": "0.5.18",
            "model_path": "models/small",
            "served_model_name": "small",
            "api_key": "sk-not-for-anyone",
            "admin_api_key": "sk-not-for-anyone-either",
            "random_seed": 12345,
            "page_size": self.page,
            "chunked_prefill_size": self.chunk,
            "max_running_requests": 16,
            "max_total_num_tokens": 32768,
            "context_length": None,
            "dp_size": self.ranks,
            "disable_radix_cache": False,
            "is_embedding": False,
            "skip_tokenizer_init": True,
            "enable_deterministic_inference": False,
            "uses_mamba_radix_cache": self.kind != "attention",
            "mamba_radix_cache_strategy": "auto" if self.kind == "attention" else self.kind,
            "mamba_track_interval": 256,
            "internal_states": [{"api_key": "sk-not-for-anyone", "last_gen_throughput": 1.5}],
            **self.info,
        }

    def routes(self) -> dict[str, Any]:
        return {
            "/server_info": self.server_info(),
            "/model_info": {
                "is_generation": True,
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
            },
            "/v1/models": {"object": "list", "data": [{"id": "small", "max_model_len": self.context}]},
            "/v1/loads": {
                "loads": [{"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1}, {"dp_rank": 1}]
            },
        }

    async def generate(self, _: web.Request, wanted: GenerateRequest) -> web.StreamResponse:
        await asyncio.sleep(0)
        asked = wanted.token_ids_logprob
        if asked and max(asked) >= self.vocab and self.checks_candidates:
            words = (
                f"token_ids_logprob contains out-of-vocabulary token id {max(asked)}; "
                f"valid range is [0, {self.vocab})."
            )
            return web.json_response({"error": {"message": words}}, status=400)
        prompt = [int(t) for t in wanted.prompts[0] if not isinstance(t, str)]
        assert len(prompt) < self.context
        assert max(prompt) < self.vocab
        cached = self._resume(prompt, wanted)
        self.spent += len(prompt) - cached
        value = honest.answer(wanted)
        meta = value["meta_info"]
        meta["cached_tokens"] = cached
        if not self.logprobs:
            for name in [n for n in meta if n.endswith("_logprobs")]:
                del meta[name]
        elif not self.start_limits_answer and wanted.return_logprob:
            meta["input_token_logprobs"] = [[-1.0 if i else None, t, None] for i, t in enumerate(prompt)]
        return web.Response(body=orjson.dumps(value), content_type="application/json")

    def _resume(self, prompt: list[int], wanted: GenerateRequest) -> int:
        """SGLang's rule, then what this request leaves behind."""
        if not self.caches:
            return 0
        self._turn += 1
        rank = self._turn % self.ranks
        space = (wanted.extra_key or "") if self.separate_namespaces else ""
        limit = len(prompt) - 1
        if wanted.return_logprob and wanted.logprob_start_len is not None and self.start_limits_match:
            limit = min(limit, wanted.logprob_start_len)
        best = 0
        for r, s, ids, states in self._kept:
            if (r, s) != (rank, space):
                continue
            common = next((i for i, (a, b) in enumerate(zip(ids, prompt, strict=False)) if a != b), None)
            if common is None:
                common = min(len(ids), len(prompt))
            common = min(common, limit)
            if self.kind == "attention":
                best = max(best, common // self.page * self.page)
            else:
                best = max([best, *(n for n in states if n <= common)])
        self._kept.append((rank, space, prompt, self._states(best, len(prompt))))
        return best

    def _states(self, start: int, n: int) -> set[int]:
        ends = [*range(start + self.chunk, n, self.chunk), n]
        if self.kind == "no_buffer":
            return set(ends)
        starts = [start, *ends[:-1]]
        return {
            a + (b - a) // self.state_chunk * self.state_chunk for a, b in zip(starts, ends, strict=True)
        } - {start}


@asynccontextmanager
async def small(
    server: Small, *, seen: Seen | None = None, port: int = 0, **routes: Any
) -> AsyncIterator[str]:
    """The server, listening. ``routes``: answers of GET paths in place of its own (None: 404)."""
    answers = {**server.routes(), **{"/" + name.replace("__", "/"): value for name, value in routes.items()}}
    answers = {path: value for path, value in answers.items() if value is not None}
    listening: AbstractAsyncContextManager[str] = serving(
        server.generate, seen=seen, routes=answers, port=port
    )
    async with listening as url:
        yield url
