"""Which waiting requests may start now, and with how many tokens: the prefill budget and the memory reserve.

Follows SGLang's PrefillAdder: first come, first served; the unfinished chunk goes first; a batch takes at
most ``chunked_prefill_size`` tokens, each request charged in whole pages; memory is kept back for what
running requests may still generate. It admits requests to the cache but runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from soak.sim.batch import Chunk
from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.pools import OutOfSlots
from soak.sim.request import Request

CLIP_NEW_TOKENS = 4096
RATIO_START, RATIO_MIN, RATIO_STEP = 0.7, 0.1, 0.001


@dataclass(slots=True)
class Plan:
    """chunks: the next prefill batch in row order.

    Admitted, restored: requests that leave the queue, from nothing or from a backup.
    """

    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    restored: list[Request] = field(default_factory=list)


class Admission:
    """Budget of prefill batches. ``ratio``: share of max_new_tokens that is kept back per running request."""

    def __init__(self, config: SimConfig, cache: Cache) -> None:
        self._config = config
        self._cache = cache
        self.ratio = RATIO_START

    def relax(self) -> None:
        """A decode step went well: keep back a little less."""
        self.ratio = max(RATIO_MIN, self.ratio - RATIO_STEP)

    def tighten(self) -> None:
        """A request had to be retracted: keep back more again."""
        self.ratio = RATIO_START

    def plan(self, chunked: Request | None, waiting: Sequence[Request], running: Sequence[Request]) -> Plan:
        """What of ``waiting`` starts now, after the next chunk of ``chunked``."""
        budget = self._config.prefill_budget
        plan = Plan()
        if chunked is not None:
            end = min(chunked.seq_len, chunked.kv_len + budget)
            try:
                self._cache.extend_row(chunked, end)
            except OutOfSlots:
                return plan
            plan.chunks.append(Chunk(chunked, chunked.kv_len, end))
            budget -= self._charge(end - chunked.kv_len)
            if end < chunked.seq_len:
                return plan
        reserve = sum(self._reserve(r) for r in running)
        for request in waiting:
            started = len(running) + len(plan.chunks) + len(plan.restored)
            if budget <= 0 or started >= self._config.max_running_requests:
                break
            alone = started == 0
            if request.backup is not None:
                if not self._bring_back(request, reserve, alone):
                    break
                plan.restored.append(request)
            else:
                chunk = self._admit(request, budget, reserve, alone)
                if chunk is None:
                    break
                plan.admitted.append(request)
                plan.chunks.append(chunk)
                budget -= self._charge(chunk.end - chunk.start)
                if not chunk.last:
                    break
            reserve += self._reserve(request)
        return plan

    def _bring_back(self, request: Request, reserve: float, alone: bool) -> bool:
        needed = request.seq_len + reserve + self._reserve(request)
        if not alone and needed > self._cache.available_tokens():
            return False
        try:
            self._cache.bring_back(request)
        except OutOfSlots:
            return False
        return True

    def _admit(self, request: Request, budget: int, reserve: float, alone: bool) -> Chunk | None:
        match = self._cache.match(request)
        try:
            self._cache.admit(request, match)
        except OutOfSlots:
            return None
        start = request.kv_len
        end = min(request.seq_len, start + budget)
        if end < request.seq_len:
            end = start + (end - start) // self._config.page_size * self._config.page_size
        needed = request.seq_len - start + (0.0 if alone else reserve + self._reserve(request))
        try:
            if end <= start or (not alone and needed > self._cache.available_tokens()):
                raise OutOfSlots("the prefill budget or the reserve is spent")
            self._cache.extend_row(request, end)
        except OutOfSlots:
            self._cache.release(request, keep_from=request.protected)
            return None
        if not request.cached_counted:
            request.cached_counted = True
            request.cached = match.length
            from_host = match.length - match.device_len + request.prefetched_tokens
            request.cached_host = min(from_host, match.length)
            request.cached_device = match.length - request.cached_host
        return Chunk(request, start, end)

    def _charge(self, tokens: int) -> int:
        page = self._config.page_size
        return -(-tokens // page) * page

    def _reserve(self, request: Request) -> float:
        left = request.sampling.max_new_tokens - len(request.output)
        return min(max(left, 0), CLIP_NEW_TOKENS) * self.ratio + self._config.page_size
