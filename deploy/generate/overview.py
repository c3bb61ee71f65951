"""The dashboard *Soak overview*: the verdict, what it rests on, and how far the cache is from the truth."""

from __future__ import annotations

from deploy.generate.panels import (
    Json,
    Panel,
    Query,
    dashboard,
    heatmap,
    quantile,
    rate,
    sel,
    table,
    thresholds,
)

PROBE = 'comparison="probe"'
UNACKED, MUTED = 'acked="no"', 'acked!="no"'
VALID, LOOKED = 'outcome="valid"', 'outcome!="evicted"'

_VERDICTS = {
    "CLEAN": "green",
    "CALIBRATING": "blue",
    "VACUOUS": "yellow",
    "SUSPECT": "orange",
    "CORRUPT": "red",
}


def _verdict_colours() -> list[Json]:
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/{verdict}/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for verdict, colour in _VERDICTS.items()
    ]


def soak_overview() -> Json:
    """The dashboard."""
    return dashboard(
        "soak-overview",
        "Soak overview",
        "Is what the prefix cache serves what a cold recompute gives?",
        [*_at_a_glance(), *_divergence(), *_reach(), *_confidence()],
        known_by="soak_verdict",
    )


def _at_a_glance() -> list[Panel]:
    valid = f"max by (instance) ({sel('soak_last_valid_probe_timestamp_seconds')} > 0)"
    return [
        Panel(
            "Verdict",
            "The verdict in force on each soak. CORRUPT: the cache serves something else than a cold "
            "recompute.",
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
            overrides=_verdict_colours(),
        ),
        Panel(
            "Alarms that page",
            "Latched alarms that nobody has acknowledged or muted.",
            [Query(f"sum by (instance) ({sel('soak_alarms', UNACKED)})", "{{instance}}", instant=True)],
            type="stat",
            unit="short",
            width=4,
            height=5,
            defaults=thresholds((None, "green"), (1, "red")),
        ),
        Panel(
            "Muted alarms",
            "Alarms that stand as known or until a time: they send no page and still count for the verdict.",
            [Query(f"sum by (instance) ({sel('soak_alarms', MUTED)})", "{{instance}}", instant=True)],
            type="stat",
            unit="short",
            width=4,
            height=5,
            defaults=thresholds((None, "green"), (1, "yellow")),
        ),
        Panel(
            "Since the last valid probe",
            "How old the newest comparison of warm with cold is.",
            [Query(f"time() - {valid}", "{{instance}}", instant=True)],
            type="stat",
            unit="s",
            width=4,
            height=5,
            defaults=thresholds((None, "green"), (300, "yellow"), (900, "red")),
        ),
        Panel(
            "Guaranteed run length",
            "Probes to a false alarm, on average, that the detectors guarantee at least; 0 until calibrated.",
            [
                Query(
                    f"min by (instance) ({sel('soak_guaranteed_run_length_probes')})",
                    "{{instance}}",
                    instant=True,
                )
            ],
            type="stat",
            unit="short",
            width=4,
            height=5,
            defaults=thresholds((None, "blue")),
        ),
        Panel(
            "Evidence against the bar",
            "Combined log evidence of all streams, in nats. Main at the bar is CORRUPT; paired alone "
            "is SUSPECT.",
            [
                Query(
                    f"max by (instance, evidence) ({sel('soak_evidence_combined_nats')})",
                    "{{instance}} {{evidence}}",
                ),
                Query(f"max by (instance) ({sel('soak_evidence_bar_nats')})", "{{instance}} bar"),
            ],
        ),
        Panel(
            "Evidence by stream",
            "Log evidence of each stream (shape, length, resume kind), in nats: where it comes from.",
            [Query(f"topk(20, max by (stream) ({sel('soak_evidence_nats')}))", "{{stream}}")],
        ),
        table(
            "Alarms that stand",
            "By verdict, detector channel, shape and fingerprint; acked no sends a page. `soak "
            "alarms` has their ids.",
            f"sum by (verdict, channel, shape, acked, fingerprint, instance) ({sel('soak_alarms')}) > 0",
            hidden=(),
            width=24,
        ),
    ]


def _divergence() -> list[Panel]:
    k3, largest = "soak_divergence_k3_nats", "soak_divergence_max_abs_nats"
    return [
        Panel(
            "KL of warm against cold, and of the controls",
            "Mean k3 over the scored tokens, in nats: the median and the 99th percentile of probes, "
            "beside the same "
            "of controls and of repeated cold passes, which are this server's own noise.",
            [
                Query(quantile(0.5, "comparison", k3), "{{comparison}} p50"),
                Query(quantile(0.99, "comparison", k3), "{{comparison}} p99"),
            ],
            log=True,
        ),
        Panel(
            "Largest |d| of a probe, by shape",
            "How far single tokens of warm answers are from cold ones, in nats; 99th percentile.",
            [Query(quantile(0.99, "shape", largest, PROBE), "{{shape}}")],
            log=True,
        ),
        heatmap(
            "KL of probes",
            "Mean k3 of warm against cold, in nats. A second band far above the first is a cache "
            "that sometimes lies.",
            k3,
            PROBE,
            "none",
        ),
        heatmap(
            "Largest |d| of probes",
            "The largest difference of a single token's logprob between warm and cold, in nats.",
            largest,
            PROBE,
            "none",
        ),
        Panel(
            "Amnesia",
            "Share of the far context's contribution that is lost, 90th percentile: 0 remembers all, "
            "1 nothing.",
            [Query(quantile(0.9, "shape", "soak_amnesia_ratio"), "{{shape}}")],
            unit="percentunit",
        ),
        heatmap(
            "Amnesia of probes",
            "Share of the far context's contribution that was lost, over all shapes.",
            "soak_amnesia_ratio",
            "",
            "percentunit",
        ),
        Panel(
            "Where warm begins to differ",
            "Place of the first differing token after the resume boundary, median: small is a state "
            "that was restored "
            "wrong, large one that drifts.",
            [Query(quantile(0.5, "shape", "soak_onset_tokens"), "{{shape}}")],
            unit="short",
        ),
        Panel(
            "Coarsened KL, a lower bound",
            "Over the candidates that two passes list, in nats; 99th percentile. Empty unless "
            "probe.top_k is set.",
            [Query(quantile(0.99, "shape", "soak_divergence_coarsened_kl_nats"), "{{shape}}")],
            log=True,
        ),
        Panel(
            "Comparisons that agree to the last bit",
            "Share of comparisons without any difference; on a deterministic server all of them.",
            [
                Query(
                    f"sum by (comparison) ({rate(sel('soak_divergence_bit_exact_total'))})"
                    f" / sum by (comparison) ({rate(sel(k3 + '_count'))})",
                    "{{comparison}}",
                )
            ],
            unit="percentunit",
        ),
    ]


def _reach() -> list[Panel]:
    last_reached = "soak_coverage_last_reached_timestamp_seconds"
    return [
        table(
            "Coverage",
            "The state of each conjunction of conditions that a known fault needs. not-reached "
            "means: not tested.",
            f"max by (conjunction, state, instance) ({sel('soak_coverage_state')}) == 1",
            hidden=("Value",),
        ),
        Panel(
            "Conjunctions reached",
            "How often the conditions of each conjunction held together.",
            [Query(f"sum by (conjunction) ({rate(sel('soak_coverage_reached_total'))})", "{{conjunction}}")],
            unit="cps",
        ),
        Panel(
            "Probes of what a conjunction touched",
            "Valid probes whose victim a conjunction touched: reached and never looked at is not "
            "tested either.",
            [Query(f"sum by (conjunction) ({rate(sel('soak_coverage_probes_total'))})", "{{conjunction}}")],
            unit="cps",
        ),
        Panel(
            "Since a conjunction was last reached",
            "Age of the last time the conditions held together.",
            [
                Query(
                    f"time() - max by (conjunction) ({sel(last_reached)} > 0)",
                    "{{conjunction}}",
                )
            ],
            unit="s",
        ),
        Panel(
            "Probes by outcome",
            "Only valid ones compared anything. Evicted: the victim was simply not cached any more.",
            [Query(f"sum by (outcome) ({rate(sel('soak_probes_total'))})", "{{outcome}}")],
            unit="cps",
        ),
        Panel(
            "Valid share of probes, by shape",
            "Of those whose victim was still cached.",
            [
                Query(
                    f"sum by (shape) ({rate(sel('soak_probes_total', VALID))})"
                    f" / sum by (shape) ({rate(sel('soak_probes_total', LOOKED))})",
                    "{{shape}}",
                )
            ],
            unit="percentunit",
        ),
    ]


def _confidence() -> list[Panel]:
    return [
        Panel(
            "Controls on the way to calibration",
            "Controls seen of each resume kind, over those it needs.",
            [
                Query(
                    f"max by (kind) ({sel('soak_calibration_controls')})"
                    f" / max by (kind) ({sel('soak_calibration_controls_needed')})",
                    "{{kind}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Noise floors",
            "Median score of controls and of repeated cold passes of each resume kind, in nats. "
            "Controls far over "
            "the cold floor are a fault that spoils them too.",
            [
                Query(f"max by (kind) ({sel('soak_calibration_control_floor_nats')})", "{{kind}} controls"),
                Query(f"max by (kind) ({sel('soak_calibration_cold_floor_nats')})", "{{kind}} cold"),
            ],
            log=True,
        ),
        table(
            "How each resume kind is judged",
            "Exact: to the last bit. Tolerance: against its own controls. Calibrating: by ceilings only.",
            f"max by (kind, mode, instance) ({sel('soak_detector_mode')}) == 1",
            hidden=("Value",),
        ),
        Panel(
            "Age of the saved state",
            "What a crash would lose of evidence, calibration and alarms. Empty for a run without run.state.",
            [
                Query(
                    f"time() - max by (instance) ({sel('soak_state_saved_timestamp_seconds')} > 0)",
                    "{{instance}}",
                )
            ],
            unit="s",
        ),
        Panel(
            "Journal",
            "Rows a second written to the journal, and lost: an alarm with lost rows cannot be "
            "replayed in full.",
            [
                Query(f"sum({rate(sel('soak_journal_rows_total'))})", "written"),
                Query(f"sum({rate(sel('soak_journal_dropped_total'))})", "lost"),
            ],
            unit="cps",
        ),
        table(
            "What is soaked, by what",
            "Digest of the server's fingerprint, whether it is the simulator, and the version of soak.",
            f"max by (instance, fingerprint, simulator) ({sel('soak_target_info')})"
            f" * on (instance) group_left (version) max by (instance, version) ({sel('soak_build_info')})",
            hidden=("Value",),
        ),
    ]
