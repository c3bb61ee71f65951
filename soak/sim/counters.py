"""What the server counts, for ``/metrics`` and ``/server_info``: plain numbers, under SGLang's metric names.

Updated by the scheduler's thread and read by the HTTP side; a reader may see numbers of two neighbouring
steps.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable

from soak.sim.request import Request

TTFT_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0)


class Histogram:
    """Counts per upper bound, Prometheus style."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> Iterable[tuple[str, int]]:
        """(upper bound, values at or below it), ending with +Inf."""
        total = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            yield bound, total


class Counters:
    """Totals since the start, and the rates SGLang shows as gauges."""

    def __init__(self) -> None:
        # by whether the request was streamed
        self.prompt_tokens = {False: 0, True: 0}
        self.generation_tokens = {False: 0, True: 0}
        self.cached_device = 0
        self.cached_host = 0
        self.requests = {False: 0, True: 0}
        self.aborted = 0
        self.retractions = 0
        self.prefill_batches = 0
        self.decode_batches = 0
        self.graph_passes = 0
        self.eager_passes = 0
        self.last_was_graph = False
        self.hit_rate = 0.0
        self.throughput = 0.0
        self.ttft = Histogram(TTFT_BUCKETS)
        self.e2e = Histogram(TTFT_BUCKETS)
        self._decoded_since = 0
        self._since = time.monotonic()

    def admitted(self, request: Request) -> None:
        """A request left the queue."""
        computed = request.seq_len - request.protected
        self.hit_rate = request.protected / max(1, request.protected + computed)

    def prefilled(self, tokens: int, graph: bool) -> None:
        """A prefill batch computed so many tokens."""
        del tokens
        self.prefill_batches += 1
        self._pass(graph)

    def decoded(self, rows: int, graph: bool) -> None:
        """A decode batch ran."""
        self.decode_batches += 1
        self._pass(graph)
        self._decoded_since += rows
        now = time.monotonic()
        if now - self._since > 1.0:
            self.throughput = self._decoded_since / (now - self._since)
            self._decoded_since, self._since = 0, now

    def _pass(self, graph: bool) -> None:
        self.last_was_graph = graph
        if graph:
            self.graph_passes += 1
        else:
            self.eager_passes += 1

    def retracted(self) -> None:
        """A request was sent back to the queue for want of memory."""
        self.retractions += 1

    def finished(self, request: Request) -> None:
        """A request left the server."""
        self.requests[request.stream] += 1
        if request.finish is not None and request.finish["type"] == "abort":
            self.aborted += 1
        self.prompt_tokens[request.stream] += len(request.prompt)
        self.generation_tokens[request.stream] += len(request.output)
        self.cached_device += request.cached_device
        self.cached_host += request.cached_host
        self.e2e.observe(time.monotonic() - request.arrived_s)

    def first_token(self, request: Request) -> None:
        """A request has its first token."""
        self.ttft.observe(time.monotonic() - request.arrived_s)
