"""The scheduler without HTTP, one step at a time.

For benchmarks, tests and for looking at a fault on a laptop.

Deterministic: no thread, no clock in any decision. Requests are named in the order they are sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.counters import Counters
from soak.sim.numerics import F64, I64
from soak.sim.request import Request, Sampling
from soak.sim.runner import Runner
from soak.sim.scheduler import Scheduler

Ids = Sequence[int] | I64


class Direct:
    """One simulated server under the caller's hand."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.cache = Cache(config)
        self.counters = Counters()
        self.reported: list[Request] = []
        self.scheduler = Scheduler(
            config, self.cache, Runner(config, self.cache), self.counters, self.reported.append
        )
        self._sent = 0

    def send(
        self,
        ids: Ids,
        new: int = 0,
        score_from: int | None = None,
        key: str | None = None,
        *,
        lora: str | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> Request:
        """Queue a request: ``new`` tokens to generate, prompt logprobs from ``score_from`` on if given."""
        self._sent += 1
        request = Request(
            rid=f"r{self._sent:06d}",
            prompt=np.asarray(ids, np.int64),
            sampling=Sampling(new, temperature, ignore_eos=True, seed=seed),
            seq=self._sent,
            return_logprob=score_from is not None,
            logprob_start_len=-1 if score_from is None else score_from,
            extra_key=key,
            lora=0 if lora is None else 1 + self.config.lora_adapters.index(lora),
            lora_name=lora,
        )
        self.scheduler.add(request)
        return request

    def drain(self) -> None:
        """Step until there is nothing to do."""
        while self.scheduler.step():
            pass

    def ask(self, ids: Ids, new: int = 0, score_from: int | None = None, key: str | None = None) -> Request:
        """Send one request and drain."""
        request = self.send(ids, new, score_from, key)
        self.drain()
        return request

    def generate(self, ids: Ids, new: int, key: str | None = None) -> I64:
        """Prompt and output of a greedy generation."""
        return self.ask(ids, new, key=key).ids[: len(ids) + new]

    def warm_minus_cold(self, ids: Ids, score_from: int, label: str) -> tuple[int, F64]:
        """Score ``ids`` from ``score_from`` in the shared namespace, then in the fresh one ``label``.

        Returns (tokens the warm pass took from the cache, warm minus cold logprob per scored token, nats).
        """
        warm = self.ask(ids, score_from=score_from)
        cold = self.ask(ids, score_from=score_from, key=label)
        return warm.cached, scores(warm) - scores(cold)


def scores(request: Request) -> F64:
    """A request's prompt logprobs, nats."""
    return np.asarray(request.inputs.chosen if request.inputs is not None else [], np.float64)
