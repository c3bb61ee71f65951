"""The dashboard *Server beside soak*: SGLang's own metrics next to what soak sees from outside.

Names of the server's metrics are matched in every spelling that releases have used.
"""

from __future__ import annotations

from deploy.generate.panels import Json, Panel, Query, dashboard, per_server, quantile, rate, sel, server

ABORTED = 'outcome="aborted"'


def server_beside_soak() -> Json:
    """The dashboard."""
    return dashboard(
        "server-beside-soak",
        "Server beside soak",
        "What the server was doing when the cache lied. Choose the jobs and instances of both, or one fleet.",
        [*_findings(), *_cache(), *_pressure(), *_work()],
        known_by='{__name__=~"soak_verdict|sglang[:_]num_running_reqs"}',
    )


def _findings() -> list[Panel]:
    largest = quantile(0.99, "", "soak_divergence_max_abs_nats", 'comparison="probe"')
    return [
        Panel(
            "Verdict",
            "The verdict in force on each soak.",
            [
                Query(
                    f"max by (instance, verdict) ({sel('soak_verdict')}) == 1",
                    "{{instance}}: {{verdict}}",
                    instant=True,
                )
            ],
            type="stat",
            width=8,
            height=5,
            options={"textMode": "name"},
        ),
        Panel(
            "Target answers",
            "1 while the server under test answers soak.",
            [Query(f"min by (instance) ({sel('soak_target_up')})", "{{instance}}", instant=True)],
            type="stat",
            unit="bool_yes_no",
            width=4,
            height=5,
        ),
        Panel(
            "Time without the server",
            "Share of the time in which nothing answered soak: a restart, a crash, or a network gone.",
            [Query(f"sum by (instance) ({rate(sel('soak_target_gone_seconds_total'))})", "{{instance}}")],
            unit="percentunit",
            width=6,
            height=5,
        ),
        Panel(
            "Evidence, and the largest |d|",
            "Combined log evidence and the 99th percentile of the largest |d| of probes, in nats.",
            [
                Query(f"max({sel('soak_evidence_combined_nats')})", "evidence"),
                Query(largest, "largest |d| p99"),
            ],
            width=6,
            height=5,
        ),
    ]


def _cache() -> list[Panel]:
    ours = f"sum({rate(sel('soak_cached_tokens_total'))}) / sum({rate(sel('soak_prompt_tokens_total'))})"
    cached = server("cached_tokens(_total)?")
    return [
        Panel(
            "Cache hit rate",
            "The server's own gauge, of its last prefill report, and the cached share of soak's load.",
            [
                Query(f"max by (instance) ({server('cache_hit_rate')})", "server {{instance}}"),
                Query(ours, "load of soak"),
            ],
            unit="percentunit",
        ),
        Panel(
            "Cached tokens by source",
            "Prompt tokens a second that came out of the cache: from the device, or loaded back from "
            "the host.",
            [Query(per_server(rate(cached), "cache_source"), "{{cache_source}}")],
            unit="short",
        ),
        Panel(
            "Pools in use",
            "Tokens in use as a share of the pool, of full attention and of the sliding window, and "
            "state slots.",
            [
                Query(f"max by (instance) ({server('token_usage')})", "tokens {{instance}}"),
                Query(f"max by (instance) ({server('full_token_usage')})", "full attention {{instance}}"),
                Query(f"max by (instance) ({server('swa_token_usage')})", "sliding window {{instance}}"),
                Query(f"max by (instance) ({server('mamba_usage')})", "states {{instance}}"),
            ],
            unit="percentunit",
        ),
        Panel(
            "Evictions, and victims found evicted",
            "Tokens a second that the server evicted, and probes a second that found their victim gone.",
            [
                Query(per_server(rate(server("evicted_tokens(_total)?"))), "tokens evicted"),
                Query(f"sum({rate(sel('soak_victims_evicted_total'))})", "victims evicted"),
            ],
            unit="short",
        ),
    ]


def _pressure() -> list[Panel]:
    return [
        Panel(
            "Retractions",
            "Requests a second that the server sent back to the queue for want of memory, and those "
            "of soak's load.",
            [
                Query(
                    per_server(rate(server("num_retracted_requests(_total)?"))),
                    "server {{instance}}",
                ),
                Query(f"sum({rate(sel('soak_retractions_total'))})", "load of soak"),
            ],
            unit="reqps",
        ),
        Panel(
            "Running and queued",
            "Requests on the server, and how many of them are soak's.",
            [
                Query(per_server(server("num_running_reqs")), "running {{instance}}"),
                Query(per_server(server("num_queue_reqs")), "queued {{instance}}"),
                Query(f"sum({sel('soak_requests_in_flight')})", "of soak"),
            ],
            unit="short",
        ),
        Panel(
            "Aborted requests",
            "As the server counts them, and as soak saw its own.",
            [
                Query(
                    per_server(rate(server("num_aborted_requests(_total)?"))),
                    "server {{instance}}",
                ),
                Query(f"sum({rate(sel('soak_requests_total', ABORTED))})", "load of soak"),
            ],
            unit="reqps",
        ),
    ]


def _work() -> list[Panel]:
    buckets = f"sum by (le) ({rate(server('time_to_first_token_seconds_bucket'))})"
    return [
        Panel(
            "Graph replays",
            "Forward passes a second by whether a captured graph was replayed: where stale rows can "
            "come from.",
            [Query(per_server(rate(server("cuda_graph_passes(_total)?")), "mode"), "{{mode}}")],
            unit="ops",
        ),
        Panel(
            "Tokens",
            "Prompt and output tokens a second of the whole server, and the prefill that probes cost.",
            [
                Query(per_server(rate(server("prompt_tokens(_total)?"))), "prompt {{instance}}"),
                Query(per_server(rate(server("generation_tokens(_total)?"))), "output {{instance}}"),
                Query(f"sum({rate(sel('soak_probe_tokens_total'))})", "probes of soak"),
            ],
            unit="short",
        ),
        Panel(
            "Time to first token, by server and by soak",
            "99th percentiles. The server counts from arrival, soak from when it meant to send.",
            [
                Query(f"histogram_quantile(0.99, {buckets})", "server"),
                Query(quantile(0.99, "", "soak_time_to_first_token_seconds"), "load of soak"),
            ],
            unit="s",
        ),
    ]
