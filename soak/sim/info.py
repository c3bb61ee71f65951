"""What the server says about itself: ``/server_info``, ``/model_info``, ``/v1/models`` and ``/metrics``.

SGLang's field and metric names with the simulator's values, and ``"simulator": true``. Like the real one,
``/server_info`` shows the API key in clear text. Reads the engine, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from soak.sim.asked import max_request_len
from soak.sim.config import SimConfig
from soak.sim.counters import Histogram
from soak.sim.engine import Engine

VERSION = "0.5.18+soak.sim"


def server_info(engine: Engine, host: str, port: int, started_s: float) -> dict[str, Any]:
    """The resolved arguments, live state, and that this is a simulator."""
    config = engine.config
    exact = config.numerics == "exact"
    arguments: dict[str, Any] = {
        "model_path": config.model_path,
        "tokenizer_path": config.model_path,
        "served_model_name": config.model_path,
        "skip_tokenizer_init": not config.tokenizer,
        "grammar_backend": "xgrammar",
        "load_format": "dummy",
        "context_length": None,  # not given on the command line; /v1/models says the limit
        "dtype": "float64" if exact else "bfloat16",
        "kv_cache_dtype": "auto",
        "is_embedding": False,
        "host": host,
        "port": port,
        "api_key": config.api_key,
        "admin_api_key": None,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "enable_dp_attention": False,
        "random_seed": config.seed,
        "max_running_requests": config.max_running_requests,
        "max_queued_requests": None,
        "max_total_tokens": config.max_total_tokens,
        "max_prefill_tokens": 16384,
        "chunked_prefill_size": config.chunked_prefill_size,
        "page_size": config.page_size,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "radix_eviction_policy": "lru",
        "disable_radix_cache": config.disable_radix_cache,
        "disable_overlap_schedule": not config.overlap,
        "enable_mixed_chunk": config.mixed_chunk,
        "enable_metrics": config.enable_metrics,
        "enable_deterministic_inference": exact,
        "attention_backend": "numpy",
        "sampling_backend": "pytorch",
        "uses_mamba_radix_cache": config.hybrid,
        "mamba_radix_cache_strategy": config.radix_strategy if config.hybrid else "auto",
        "mamba_track_interval": config.mamba_track_interval,
        "max_mamba_cache_size": config.max_mamba_slots,
        "mamba_ssm_dtype": None,
        "enable_hierarchical_cache": config.host_tokens > 0,
        "hicache_ratio": config.host_tokens / config.max_total_tokens if config.host_tokens else 2.0,
        "hicache_size": 0,
        "hicache_write_policy": "write_through",
        "hicache_storage_backend": None,
        "disable_cuda_graph": not (config.prefill_graph or config.decode_graph),
        "disable_prefill_cuda_graph": not config.prefill_graph,
        "disable_decode_cuda_graph": not config.decode_graph,
        "cuda_graph_config": _graph_config(config),
        "speculative_algorithm": "NGRAM" if config.spec_draft_tokens else None,
        "speculative_num_draft_tokens": config.spec_draft_tokens or None,
        "enable_lora": bool(config.lora_adapters) or None,
        "lora_paths": list(config.lora_adapters) or None,
        "disaggregation_mode": "null",
        "disaggregation_decode_retraction_backup": "host" if config.retraction_backup else None,
        "stream_interval": 1,
        "incremental_streaming_output": False,
        "weight_version": "default",
        "kv_canary": "none",
    }
    live = {
        **arguments,
        "last_gen_throughput": engine.counters.throughput,
        "memory_usage": {
            "weight": 0.0,
            "kvcache": 0.0,
            "startup_available": 0.0,
            "token_capacity": engine.cache.tokens.size,
            "token_capacity_swa": None,
            "graph": {},
        },
        "effective_max_running_requests_per_dp": config.max_running_requests,
        "startup_time": {"scheduler_e2e": started_s},
    }
    if config.hybrid:
        live["_mamba_cache_chunk_size"] = config.checkpoint_grid
    return {
        **arguments,
        "status": "ready",
        "max_total_num_tokens": engine.cache.tokens.size,
        "max_req_input_len": max_request_len(config) - 5,
        "startup_time": {"scheduler_e2e": started_s},
        "internal_states": [live],
        "version": VERSION,
        "kv_events": None,
        "simulator": True,
        "simulator_faults": list(config.faults),
    }


def _graph_config(config: SimConfig) -> dict[str, Any]:
    return {
        "decode": {
            "backend": "full" if config.decode_graph else "disabled",
            "bs": list(config.decode_graph_batch_sizes),
            "max_bs": max(config.decode_graph_batch_sizes, default=0),
        },
        "prefill": {
            "backend": "full" if config.prefill_graph else "disabled",
            "bs": list(config.prefill_graph_buckets),
            "max_bs": max(config.prefill_graph_buckets, default=0),
            "full_prefill_max_req": config.graph_rows,
        },
    }


def model_info(config: SimConfig) -> dict[str, Any]:
    """Which model this is."""
    return {
        "model_path": config.model_path,
        "served_model_name": config.model_path,
        "tokenizer_path": config.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "dummy",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": f"soak_sim_{config.model}",
        "architectures": ["SoakSimHybridForCausalLM" if config.hybrid else "SoakSimForCausalLM"],
    }


def models(config: SimConfig) -> dict[str, Any]:
    """The OpenAI-style list."""
    card = {
        "id": config.model_path,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": config.model_path,
        "parent": None,
        "max_model_len": config.context_len,
    }
    return {"object": "list", "data": [card]}


def loads(engine: Engine) -> dict[str, Any]:
    """``/v1/loads``: what runs and waits now, never as old as a gauge. Run between two steps."""
    config, counters, cache, scheduler = engine.config, engine.counters, engine.cache, engine.scheduler
    size = cache.tokens.size
    _, evictable, _ = cache.tree.counts()
    used = size - cache.tokens.free_tokens - evictable
    load = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_waiting_uncached_tokens": sum(r.seq_len for r in scheduler.waiting),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "max_total_num_tokens": size,
        "max_running_requests": config.max_running_requests,
        "token_usage": used / size,
        "gen_throughput": counters.throughput,
        "cache_hit_rate": counters.hit_rate,
        "utilization": used / size,
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": VERSION,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [load],
    }


def metrics(engine: Engine) -> str:
    """Prometheus text. Run between two steps (it walks the tree)."""
    config, counters, cache, scheduler = engine.config, engine.counters, engine.cache, engine.scheduler
    name = f'engine_type="unified",model_name="{config.model_path}"'
    rank = f'{name},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    size = cache.tokens.size
    _, evictable, tree_states = cache.tree.counts()
    used = size - cache.tokens.free_tokens - evictable
    slots = config.max_mamba_slots if config.hybrid else 0
    free_slots = len(cache.states.free)
    locked = sum(1 for n in cache.tree.nodes() if n.state is not None and n.state_locks)
    mamba_used = slots - free_slots - (tree_states - locked)
    gauges: list[tuple[str, float]] = [
        ("num_running_reqs", len(scheduler.running)),
        ("num_queue_reqs", len(scheduler.waiting)),
        ("num_used_tokens", used),
        ("token_usage", used / size),
        ("full_token_usage", used / size),
        ("swa_token_usage", 0.0),
        ("mamba_usage", mamba_used / slots if slots else 0.0),
        ("mamba_available_tokens", free_slots),
        ("mamba_evictable_tokens", tree_states - locked),
        ("mamba_used_tokens", mamba_used),
        ("kv_available_tokens", cache.tokens.free_tokens),
        ("kv_evictable_tokens", evictable),
        ("kv_used_tokens", used),
        ("cache_hit_rate", counters.hit_rate),
        ("gen_throughput", counters.throughput),
        ("new_token_ratio", scheduler.admission.ratio),
        ("is_cuda_graph", float(counters.last_was_graph)),
        ("num_retracted_reqs", counters.retractions),
        ("spec_accept_length", 0.0),
        ("max_total_num_tokens", size),
        ("page_size", config.page_size),
        ("context_len", config.context_len),
    ]
    if cache.host is not None:
        gauges.append(("hicache_host_used_tokens", cache.host.used_tokens))
        gauges.append(("hicache_host_total_tokens", cache.host.pool.size))
    lines = [line for key, value in gauges for line in _series(key, "gauge", [("", rank, value)])]
    loaded = cache.host.loaded_tokens if cache.host is not None else 0
    # a source shows from its first hit on
    sources = {"device": counters.cached_device, "host": counters.cached_host}
    cached = [("", f'cache_source="{k}",{name}', float(value)) for k, value in sources.items() if value]
    totals: list[tuple[str, list[tuple[str, str, float]]]] = [
        ("prompt_tokens_total", _by_streaming(name, counters.prompt_tokens)),
        ("generation_tokens_total", _by_streaming(name, counters.generation_tokens)),
        ("num_requests_total", _by_streaming(name, counters.requests)),
        ("cached_tokens_total", cached),
        ("num_aborted_requests_total", [("", name, counters.aborted)]),
        ("num_retracted_requests_total", [("", rank, counters.retractions)]),
        ("evicted_tokens_total", [("", 'cache_type="full"', cache.evicted_tokens)]),
        ("load_back_tokens_total", [("", rank, loaded)]),
        (
            "cuda_graph_passes_total",
            [
                ("", f'mode="graph",{rank}', counters.graph_passes),
                ("", f'mode="none",{rank}', counters.eager_passes),
            ],
        ),
    ]
    for key, samples in totals:
        lines.extend(_series(key, "counter", samples))
    lines.extend(_histogram("time_to_first_token_seconds", name, counters.ttft))
    lines.extend(_histogram("e2e_request_latency_seconds", name, counters.e2e))
    return "\n".join(lines) + "\n"


def _by_streaming(labels: str, counts: dict[bool, int]) -> list[tuple[str, str, float]]:
    return [("", f'is_streaming="{str(k).lower()}",{labels}', float(count)) for k, count in counts.items()]


def _series(name: str, kind: str, samples: list[tuple[str, str, float]]) -> Iterable[str]:
    yield f"# HELP sglang:{name} {name.replace('_', ' ')} (simulator)"
    yield f"# TYPE sglang:{name} {kind}"
    for suffix, labels, value in samples:
        yield f"sglang:{name}{suffix}{{{labels}}} {float(value)}"


def _histogram(name: str, labels: str, histogram: Histogram) -> Iterable[str]:
    rows = list(histogram.cumulative())
    samples = [("_bucket", f'{labels},le="{bound}"', float(count)) for bound, count in rows]
    samples.append(("_sum", labels, histogram.sum))
    samples.append(("_count", labels, float(rows[-1][1])))
    return _series(name, "histogram", samples)
