"""What one shard of a run may spend: its part of every budget, so that all together keep to the config.

The plan is never divided here: it is resolved from the whole config, the same for every number of shards.
Pure.
"""

from __future__ import annotations

from typing import Any

from soak.config import Config, ConfigError
from soak.drive.beside_others import REQUIRED_BESIDE_OTHERS
from soak.plan.shapes import DISRUPTIVE, chunked_burst, co_batched, identical

_BURSTS = (chunked_burst.NAME, co_batched.NAME, identical.NAME)


def replica_of(config: Config) -> str:
    """The address that this shard soaks: shards are dealt to the replicas in turn."""
    urls = config.target.urls
    return urls[config.run.shard % len(urls)]


def own_share(config: Config) -> Config:
    """The config as one shard works by it. Raises ConfigError where the budget leaves a shard too little.

    in_flight, tokens_per_second and the probe rate are divided by the number of shards; the share of a pool
    by the number of shards on that server. Shares of the shard's own traffic, and limits past which load
    backs off, stay as they are. At least one probe at a time is left to each shard. The fleet of
    ``false_alarms_per_year`` has as many more soaks in it, each at so much less than the rate, which leaves
    the run length A as it was.
    """
    shard, shards, urls = config.run.shard, config.run.shards, config.target.urls
    if shards < len(urls):
        raise ConfigError(
            f"run.shards: {shards} for {len(urls)} replicas (target.url and target.replicas): each replica "
            f"needs a shard of its own at least, as `soak run --workers {len(urls)}` gives it"
        )
    if shards == 1:
        return config
    here = len(range(shard % len(urls), shards, len(urls)))  # shards on the same server
    concurrency = max(1, config.probe.concurrency // shards)
    budget: dict[str, object] = {}
    if config.budget.in_flight is not None:
        budget["in_flight"] = _in_flight(config, concurrency)
    if config.budget.tokens_per_second is not None:
        budget["tokens_per_second"] = config.budget.tokens_per_second / shards
    pool = config.pool_share_per_minute
    budget["pool_share_per_minute"] = None if pool is None else pool / here
    detect: dict[str, object] = {}
    if config.detect.false_alarms_per_year is not None:
        detect["fleet_size"] = config.detect.fleet_size * shards
    return config.model_copy(
        update={
            "target": config.target.model_copy(update={"url": replica_of(config), "replicas": ()}),
            "budget": config.budget.model_copy(update=budget),
            "detect": config.detect.model_copy(update=detect),
            "probe": config.probe.model_copy(
                update={"rate": config.probe.rate / shards, "concurrency": concurrency}
            ),
        }
    )


def _in_flight(config: Config, concurrency: int) -> int:
    """This shard's part of budget.in_flight, with room for its largest burst and its probes."""
    most, shard, shards = config.budget.in_flight or 0, config.run.shard, config.run.shards
    mine, least = most // shards + (shard < most % shards), most // shards
    weights = config.load.shapes
    largest = 1
    if any(weights.get(name) for name in _BURSTS):
        largest = config.load.burst
    if any(weights.get(name) for name in DISRUPTIVE):
        largest = max(largest, min(config.load.pressure, most))
    if least < largest + concurrency:
        raise ConfigError(
            f"budget.in_flight: {most} over {shards} shards leaves {least} to each, and one index of the "
            f"plan sends up to {largest} at once beside {concurrency} probes: take at most "
            f"{max(1, most // (largest + concurrency))} shards, raise it, or lower load.burst and "
            "load.pressure"
        )
    return mine


def shard_facts(config: Config, run_id: str) -> dict[str, Any] | None:
    """What a summary says of its shard, None for a run that is whole; ``asks`` is what the run must meet."""
    if config.run.shards == 1:
        return None
    wanted = config.detect.require_coverage
    if wanted is None and config.load.none:
        wanted = tuple(REQUIRED_BESIDE_OTHERS)
    return {
        "number": config.run.shard,
        "of": config.run.shards,
        "run_id": run_id,
        "asks": {
            "min_valid_probes": config.detect.min_valid_probes,
            "require_coverage": None if wanted is None else sorted(wanted),
            "thresholds": config.thresholds.model_dump(mode="json"),
        },
    }
