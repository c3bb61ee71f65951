"""The simulator behind soak's own session, in one process: bodies and decoders as over HTTP, no socket.

Load and probes alternate under the caller's hand, so that a run depends on its seed alone. It must never
answer anything that the simulator's HTTP face would not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import orjson

from soak.oracle.victims import Victim
from soak.plan.geometry import Geometry
from soak.plan.item import Segment, WrittenBy
from soak.plan.words import Draw
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, TokenIds
from soak.sglang.session import Session
from soak.sglang.wire import decode_generate, encode_generate
from soak.sim.answers import Pending
from soak.sim.asked import Refused, read
from soak.sim.config import SimConfig
from soak.sim.direct import Direct
from soak.sim.engine import Update, swap_outputs
from soak.sim.numerics import I64, ProductionNumerics
from soak.sim.request import Request

Ids = TokenIds | I64


class InProcessClient(SGLangClient):
    """A client whose server is a ``Direct``: one unstreamed request at a time, run to its end."""

    def __init__(self, direct: Direct) -> None:
        super().__init__("http://in-process.invalid")
        self._direct = direct
        self._seq = 0

    async def generate(self, request: GenerateRequest) -> tuple[Answer, ...]:
        """Run the scheduler until this request's prompts are answered; others in flight move along."""
        if request.stream:
            raise ValueError("nothing is streamed in process")
        config, scheduler = self._direct.config, self._direct.scheduler
        try:
            asked = read(orjson.loads(encode_generate(request)), config, self._seq, time.monotonic())
        except Refused as refused:
            return decode_generate(orjson.dumps(refused.body), request, http_status=refused.status)
        self._seq += len(asked.requests)
        for one in asked.requests:
            scheduler.add(one)
        while any(one.finish is None for one in asked.requests):
            if not scheduler.step():
                raise RuntimeError(f"the simulator has nothing to do and never answered {request.rids}")
        updates = _updates(config, asked.requests)
        answers = []
        for one in asked.requests:
            pending = Pending(one, one.arrived_s, config.vocab)
            pending.take(updates[one.rid])
            answers.append(pending.answer())
        return decode_generate(orjson.dumps(answers if asked.batched else answers[0]), request)

    async def abort(self, rid: str) -> bool:
        """Abort by prefix of the rid, as the server does."""
        self._direct.scheduler.abort(rid)
        return True


def _updates(config: SimConfig, requests: tuple[Request, ...]) -> dict[str, Update]:
    """What the engine would have reported of finished requests, all in one piece."""
    whole = [
        Update(
            rid=request.rid,
            output=request.output[: request.sampling.max_new_tokens],
            logprobs=request.output_logprobs[: request.sampling.max_new_tokens],
            top=request.output_top[: request.sampling.max_new_tokens],
            picked=request.output_picked[: request.sampling.max_new_tokens],
            inputs=request.inputs,
            finish=request.finish,
            cached=request.cached,
            cached_device=request.cached_device,
            cached_host=request.cached_host,
            retractions=request.retractions,
            queue_time_s=0.0,
            completion_tokens=min(len(request.output), request.sampling.max_new_tokens),
        )
        for request in requests
    ]
    if "identity-swap" in config.faults:
        whole = swap_outputs(whole)
    return {update.rid: update for update in whole}


class Site:
    """One simulated server with what traffic needs: draws and tokens, and a session for the oracle.

    Everything drawn depends on ``seed`` alone, and never on what the server says.
    """

    def __init__(self, config: SimConfig, seed: int, shape: str) -> None:
        self.direct = Direct(config)
        self.session = Session(InProcessClient(self.direct), "bench")
        self.geometry = Geometry(
            vocab_size=config.vocab,
            context_len=min(config.context_len, config.max_total_tokens),
            chunk=config.chunked_prefill_size,
            page=config.page_size,
            hybrid=config.hybrid,
        )
        self.seed = seed
        self.draw = Draw(seed, f"bench-{shape}", 0)
        self._shape = shape
        self._documents = 0

    def ids(self, length: int) -> TokenIds:
        """Fresh random tokens."""
        self._documents += 1
        return Segment("bench", self._documents, 0, length).ids(self.seed, 0, self.geometry)

    def sent(self, ids: TokenIds) -> TokenIds:
        """The same tokens, after the server has prefilled them."""
        self.ask(ids)
        return ids

    def send(self, ids: Ids, new: int = 0, key: str | None = None, lora: str | None = None) -> Request:
        """Queue a request of the load: ``new`` tokens to generate."""
        return self.direct.send(ids.astype(np.int64), new, key=key, lora=lora)

    def ask(self, ids: Ids, new: int = 0, key: str | None = None, lora: str | None = None) -> Request:
        """Send a request of the load and wait until the server has nothing more to do."""
        request = self.send(ids, new, key, lora)
        self.direct.drain()
        return request

    def victim(self, ids: Ids, prompt_len: int | None = None, **about: object) -> Victim:
        """A prefix for the oracle to ask about; with ``prompt_len``, the rest of it was generated."""
        written = WrittenBy.PREFILL if prompt_len is None else WrittenBy.DECODE
        given: dict[str, object] = {
            "ids": ids.astype(np.int32),
            "prompt_len": len(ids) if prompt_len is None else prompt_len,
            "shape": self._shape,
            "written_by": written,
            "index": self._documents,
            "step": 0,
            "part": 0,
            "written_s": time.monotonic(),
        }
        return Victim(**{**given, **about})  # type: ignore[arg-type]

    def generated(self, request: Request, upto: int | None = None) -> Victim:
        """The victim that a finished generation of the load has left: its prompt and output."""
        ids = request.ids[: len(request.prompt) + request.sampling.max_new_tokens]
        return self.victim(ids[:upto], len(request.prompt), retractions=request.retractions)

    @contextmanager
    def busy(self, tokens: int = 24) -> Iterator[None]:
        """Another request generates meanwhile, and the oracle's session counts it as in flight."""
        self.send(self.ids(40), tokens)
        for _ in range(2):
            self.direct.scheduler.step()
        self.session.prompts_in_flight += 1
        try:
            yield
        finally:
            self.session.prompts_in_flight -= 1
            self.direct.drain()

    def louder(self, factor: float) -> None:
        """Let the noise of every forward pass from now on be ``factor`` times the usual."""
        numerics = self.direct.scheduler.runner.numerics
        if not isinstance(numerics, ProductionNumerics):
            raise ValueError("a server with exact numerics has no noise")
        numerics.FORWARD = ProductionNumerics.FORWARD * factor
