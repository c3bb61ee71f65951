"""The dashboard *Load and latency*: does the server get the load it should, and how does it answer."""

from __future__ import annotations

from deploy.generate.panels import RATE, Json, Panel, Query, dashboard, heatmap, quantile, rate, sel

GONE = 'reason="server-gone"'
FAILED = 'outcome!~"ok|aborted"'
IN_TIME = 'le=~"10|10.0"'


def load_and_latency() -> Json:
    """The dashboard."""
    return dashboard(
        "load-and-latency",
        "Load and latency",
        "The load that was asked for and delivered, and what came back. Latencies count from the "
        "intended start.",
        [*_delivery(), *_latency(), *_tokens(), *_ourselves()],
        known_by="soak_verdict",
    )


def _delivery() -> list[Panel]:
    asked, delivered = sel("soak_load_asked_total"), sel("soak_load_delivered_total")
    requests = sel("soak_requests_total")
    return [
        Panel(
            "Load asked and delivered",
            "Prompts a second that the plan wanted sent, and those that were.",
            [Query(f"sum({rate(asked)})", "asked"), Query(f"sum({rate(delivered)})", "delivered")],
            unit="reqps",
        ),
        Panel(
            "Delivered share",
            "Below 1, the server saw less than the plan: what it would have done then was not tested. "
            "What fell due while there was no server is not part of it.",
            [
                Query(
                    f"sum by (instance) ({rate(delivered)}) / (sum by (instance) ({rate(asked)})"
                    f" - (sum by (instance) ({rate(sel('soak_load_undelivered_total', GONE))})"
                    f" or 0 * sum by (instance) ({rate(asked)})))",
                    "{{instance}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Not delivered, by reason",
            "Prompts that were due and not sent: limits of the budget, a busy server, or soak itself "
            "too slow.",
            [Query(f"sum by (reason) ({rate(sel('soak_load_undelivered_total'))})", "{{reason}}")],
            unit="reqps",
        ),
        Panel(
            "Answers by outcome",
            "Load requests answered, by what became of them.",
            [Query(f"sum by (outcome) ({rate(requests)})", "{{outcome}}")],
            unit="reqps",
        ),
        Panel(
            "Share of load that fails",
            "Neither ok nor aborted by ourselves; the objective allows 1%.",
            [
                Query(
                    f"sum by (instance) ({rate(sel('soak_requests_total', FAILED))})"
                    f" / sum by (instance) ({rate(requests)})",
                    "{{instance}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Time without the server",
            "Share of the time in which nothing answered. Load and probes wait meanwhile, and count "
            "against nobody.",
            [Query(f"sum by (instance) ({rate(sel('soak_target_gone_seconds_total'))})", "{{instance}}")],
            unit="percentunit",
        ),
        Panel(
            "Gaps that ended",
            "How often the server came back or began anew, by whether it was restarted: then all that was "
            "cached is lost, and nothing of it is probed.",
            [
                Query(
                    f"sum by (instance, restarted) (increase({sel('soak_target_gaps_total')}[{RATE}]))",
                    "{{instance}} restarted: {{restarted}}",
                )
            ],
            unit="short",
        ),
        Panel(
            "Requests lost with the server",
            "Load requests that a gap cut off, by outcome. They are in no share of failures and no latency.",
            [Query(f"sum by (outcome) ({rate(sel('soak_gap_requests_total'))})", "{{outcome}}")],
            unit="reqps",
        ),
        Panel(
            "Requests in flight",
            "Requests of ours that the server has not answered yet, of load and of probes.",
            [Query(f"sum by (purpose) ({sel('soak_requests_in_flight')})", "{{purpose}}")],
            unit="short",
        ),
    ]


def _latency() -> list[Panel]:
    first, whole, gap = (
        "soak_time_to_first_token_seconds",
        "soak_request_latency_seconds",
        "soak_inter_token_latency_seconds",
    )
    return [
        Panel(
            "Time to first token",
            "From the intended start, of streamed requests that ended ok.",
            [Query(quantile(q, "", first), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
            unit="s",
        ),
        Panel(
            "Time to first token by shape, 99th percentile",
            "Which family of load waits longest.",
            [Query(quantile(0.99, "shape", first), "{{shape}}")],
            unit="s",
        ),
        heatmap("Time to first token", "All shapes, from the intended start.", first, "", "s"),
        Panel(
            "Share within the objective",
            "First tokens within 10 s of the intended start; the objective is 99%.",
            [
                Query(
                    f"sum by (instance) ({rate(sel(first + '_bucket', IN_TIME))})"
                    f" / sum by (instance) ({rate(sel(first + '_count'))})",
                    "{{instance}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Time between tokens",
            "Of streamed requests that ended ok.",
            [Query(quantile(q, "", gap), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
            unit="s",
        ),
        Panel(
            "Time to the last byte",
            "From the intended start, of requests that ended ok.",
            [Query(quantile(q, "", whole), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)],
            unit="s",
        ),
    ]


def _tokens() -> list[Panel]:
    prompt, cached = sel("soak_prompt_tokens_total"), sel("soak_cached_tokens_total")
    return [
        Panel(
            "Tokens of load",
            "Tokens a second of prompts, of those what the server took from its cache, and of output.",
            [
                Query(f"sum({rate(prompt)})", "prompt"),
                Query(f"sum({rate(cached)})", "cached"),
                Query(f"sum({rate(sel('soak_completion_tokens_total'))})", "output"),
            ],
            unit="short",
        ),
        Panel(
            "Cached share of load prompts, by shape",
            "What the prefix cache saved. Without hits there is nothing to find.",
            [Query(f"sum by (shape) ({rate(cached)}) / sum by (shape) ({rate(prompt)})", "{{shape}}")],
            unit="percentunit",
        ),
        Panel(
            "Prefill tokens of probes",
            "What the probes ask of the server, beside the load's prompts.",
            [
                Query(f"sum({rate(sel('soak_probe_tokens_total'))})", "probes"),
                Query(f"sum({rate(prompt)})", "load"),
            ],
            unit="short",
        ),
        Panel(
            "Budget in use",
            "1 is all of a budget; at it, load or probes wait.",
            [Query(f"max by (budget) ({sel('soak_budget_used_ratio')})", "{{budget}}")],
            unit="percentunit",
        ),
    ]


def _ourselves() -> list[Panel]:
    return [
        Panel(
            "Lag of the schedule",
            "How late load was sent. It is soak's own lag, never the server's; large means a client "
            "too slow.",
            [Query(quantile(q, "", "soak_schedule_lag_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)],
            unit="s",
        ),
        Panel(
            "Lag of the event loop",
            "How late soak's own event loop woke up.",
            [Query(quantile(q, "", "soak_event_loop_lag_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)],
            unit="s",
        ),
        Panel(
            "Time a probe takes",
            "All passes of one probe together.",
            [Query(quantile(q, "", "soak_probe_duration_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)],
            unit="s",
        ),
        Panel(
            "Victims evicted",
            "Probes that found their victim evicted, as a share of those that looked for one.",
            [
                Query(
                    f"sum by (shape) ({rate(sel('soak_victims_evicted_total'))})"
                    f" / sum by (shape) ({rate(sel('soak_probe_duration_seconds_count'))})",
                    "{{shape}}",
                )
            ],
            unit="percentunit",
        ),
    ]
