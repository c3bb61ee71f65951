"""The workers' metrics as one page: every sample with the shard it came from, at one port.

It asks the workers when it is asked itself; one that does not answer in time is left out and said to be down.
"""

from __future__ import annotations

import http.client
import math
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_TIMEOUT_S = 2.0


class ShardMetrics(Collector):
    """pages: by shard, what gets its metrics page, None for one that is down; restarts: of its worker.

    ``collect`` blocks: it belongs into a thread, as ``Exposition`` calls it.
    """

    def __init__(
        self, pages: Callable[[], Mapping[int, Callable[[], str | None]]], restarts: Mapping[int, int]
    ) -> None:
        self._pages, self._restarts = pages, restarts

    def describe(self) -> list[Metric]:
        """Nothing beforehand: asking is for scrapes."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family once, with the samples of all shards."""
        up = GaugeMetricFamily(
            "soak_shard_up", "1 when a shard's worker answered this scrape.", None, ["shard"]
        )
        again = CounterMetricFamily(
            "soak_shard_restarts", "Times that a shard's worker died and was gone on with.", None, ["shard"]
        )
        families: dict[str, Metric] = {}
        for shard, page in sorted(self._pages().items()):
            label = str(shard)
            text = page()
            up.add_metric([label], 0 if text is None else 1)
            again.add_metric([label], self._restarts.get(shard, 0))
            for family in text_string_to_metric_families(text or ""):
                held = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    held.add_sample(sample.name, {**sample.labels, "shard": label}, sample.value)
        yield up
        yield again
        yield from families.values()


def page_at(port: int) -> str | None:
    """The metrics page at a port of this machine, None if nobody answers there; blocks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class EvidenceGauges:
    """The evidence of all shards together."""

    def __init__(self, registry: CollectorRegistry, log_bar: float) -> None:
        self._sum = Gauge(
            "soak_shards_evidence_combined_nats",
            "Natural logarithm of the evidence of all shards together.",
            registry=registry,
        )
        self._bar = Gauge("soak_shards_evidence_bar_nats", "Natural logarithm of its bar.", registry=registry)

        self._bar.set(log_bar)
        self.set(-math.inf)

    def set(self, log_sum: float) -> None:
        """As of now; -inf before there is any."""
        self._sum.set(log_sum)
