"""What the server says of its load, on /metrics or on /v1/loads, as numbers that soak goes by.

Tolerant by design: names have been spelled ``sglang:x`` and ``sglang_x``, counters with and without
``_total``, metrics come and go with releases and flags. What is absent, NaN or not readable is None; nothing
here raises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

LOADS = "/v1/loads?include=core"
"""Where SGLang says what runs and waits, whether or not it was started with --enable-metrics."""

# Our field, by the base name of the server's metric (without prefix and _total).
_GAUGES = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "max_total_num_tokens": "max_total_tokens",
}
_SHARES = {
    "token_usage": "token_usage",
    "full_token_usage": "full_token_usage",
    "mamba_usage": "mamba_usage",
    "swa_token_usage": "swa_usage",
    "cache_hit_rate": "cache_hit_rate",
}
_COUNTERS = {
    "num_retracted_requests": "retracted_total",
    "num_aborted_requests": "aborted_total",
    "num_requests": "requests_total",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "evicted_tokens": "evicted_tokens_total",
}
_BY_SOURCE = "cached_tokens"
_WANTED = {*_GAUGES, *_SHARES, *_COUNTERS, _BY_SOURCE}
_PREFIXES = ("sglang:", "sglang_")
# The ranks of one replica all report the same requests; data-parallel ranks each have their own.
_SAME_REQUESTS = ("tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "moe_dp_rank", "dcp_rank", "pid")


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One scrape. Requests and tokens are summed over data-parallel ranks; usages (shares, 0 to 1) are those
    of the fullest rank. ``*_total`` count from the server's start. None: not reported."""

    running: float | None = None
    queued: float | None = None
    token_usage: float | None = None
    full_token_usage: float | None = None
    mamba_usage: float | None = None
    swa_usage: float | None = None
    cache_hit_rate: float | None = None
    retracted_total: float | None = None
    aborted_total: float | None = None
    requests_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    evicted_tokens_total: float | None = None
    max_total_tokens: float | None = None
    cached_tokens_total: Mapping[str, float] = field(default_factory=dict)  # by source: device, host, ...


def parse_metrics(text: str) -> ServerMetrics:
    """Reads the Prometheus text format. Lines that are not of interest are never parsed: the page has
    thousands of histogram buckets and is read about once a second."""
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        base = _base_name(line)
        if base is not None:
            found[base].extend(_samples(line))
    values: dict[str, float] = {}
    for base, samples in found.items():
        if not samples:
            continue
        if base in _SHARES:
            values[_SHARES[base]] = max(value for _, value in samples)
        elif base != _BY_SOURCE:
            values[_GAUGES.get(base) or _COUNTERS[base]] = sum(_per_replica(samples).values())
    cached: dict[str, float] = defaultdict(float)
    for labels, value in _per_replica(found[_BY_SOURCE]).items():
        cached[dict(labels).get("cache_source", "device")] += value
    return ServerMetrics(**values, cached_tokens_total=dict(cached))


def parse_loads(value: object) -> ServerMetrics | None:
    """The body of /v1/loads, which SGLang (0.5.18 and newer, at least) serves without --enable-metrics, too.

    Written after every prefill and every few decode steps, so never minutes old as a gauge can be; it counts
    nothing since the start. None if it is something else. A field at its default of 0 may be left out.
    """
    loads = value.get("loads") if isinstance(value, dict) else None
    if not isinstance(loads, list) or not loads:
        return None
    ranks = [rank for rank in loads if isinstance(rank, dict)]
    if len(ranks) != len(loads):
        return None
    usages = [_number(rank, "token_usage") for rank in ranks]
    return ServerMetrics(
        running=_sum_over(ranks, "num_running_reqs"),
        queued=_sum_over(ranks, "num_waiting_reqs"),
        token_usage=max((usage for usage in usages if usage is not None), default=None),
        max_total_tokens=_sum_over(ranks, "max_total_num_tokens") or None,
    )


def _number(rank: Mapping[str, object], name: str) -> float | None:
    value = rank.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _sum_over(ranks: Sequence[Mapping[str, object]], name: str) -> float | None:
    values = [value for rank in ranks if (value := _number(rank, name)) is not None]
    return sum(values) if values else None


def _base_name(line: str) -> str | None:
    """The metric's name if it is one of those wanted, without prefix and _total."""
    if not line.startswith(_PREFIXES):
        return None
    name = line.split("{", 1)[0].split(maxsplit=1)[0][len(_PREFIXES[0]) :]
    base = name.removesuffix("_total")
    return base if base in _WANTED else None


def _samples(line: str) -> Iterator[tuple[dict[str, str], float]]:
    """The sample in one line; none if the line is damaged or its value is no number."""
    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    yield sample.labels, sample.value
    except (ValueError, KeyError, IndexError):
        return  # a damaged line counts as absent


def _per_replica(
    samples: list[tuple[dict[str, str], float]],
) -> dict[tuple[tuple[str, str], ...], float]:
    """The greatest value among ranks that report the same requests, by the remaining labels."""
    groups: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in samples:
        rest = tuple(sorted(item for item in labels.items() if item[0] not in _SAME_REQUESTS))
        groups[rest] = max(value, groups.get(rest, value))
    return groups
