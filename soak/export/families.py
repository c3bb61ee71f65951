"""Every metric family that soak exports, by name: the one place where names, labels and buckets are decided.

Names carry the prefix ``soak_`` and base units. Labels are bounded: never a seed, a request id, an
incident id, an address or anything else that grows with the run. ``docs/metrics.md`` lists the same families
and a test keeps the two equal.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

NATS_BUCKETS = tuple(float(f"{digit}e{power}") for power in range(-8, 2) for digit in (1, 3))
"""1e-8 to 30, two a decade. An exact zero lands in the lowest."""

NATS_SHOWN_MAX = 1e3
"""Larger divergences are observed as this, so that the sum of a histogram stays a number."""

LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
TOKEN_GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ONSET_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)
AMNESIA_BUCKETS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.65, 0.8, 0.95, 1.05, 2.0)
"""Negative ratios, which are noise, are observed as 0: the sum of a histogram must never fall."""


class LoadFamilies:
    """The load we put on the server and what came back."""

    def __init__(self, registry: CollectorRegistry) -> None:
        shape = ["shape"]
        self.requests = Counter(
            "soak_requests_total",
            "Load requests answered, one per prompt, by shape and outcome.",
            ["shape", "outcome"],
            registry=registry,
        )
        self.latency = Histogram(
            "soak_request_latency_seconds",
            "Time from the intended start to the last byte, of load requests that ended ok.",
            shape,
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.ttft = Histogram(
            "soak_time_to_first_token_seconds",
            "Time from the intended start to the first token, of streamed load requests that ended ok.",
            shape,
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "soak_inter_token_latency_seconds",
            "Time between output tokens of streamed load requests that ended ok.",
            shape,
            buckets=TOKEN_GAP_BUCKETS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "soak_prompt_tokens_total",
            "Prompt tokens of load requests that ended ok, as the server counted them.",
            shape,
            registry=registry,
        )
        self.completion_tokens = Counter(
            "soak_completion_tokens_total",
            "Output tokens of load requests that ended ok.",
            shape,
            registry=registry,
        )
        self.cached_tokens = Counter(
            "soak_cached_tokens_total",
            "Prompt tokens of load requests that the server took from its prefix cache.",
            shape,
            registry=registry,
        )
        self.retractions = Counter(
            "soak_retractions_total",
            "Times the server retracted one of our load requests, by its own count.",
            shape,
            registry=registry,
        )
        self.asked = Counter(
            "soak_load_asked_total", "Prompts the plan wanted sent by now.", registry=registry
        )
        self.delivered = Counter("soak_load_delivered_total", "Prompts that were sent.", registry=registry)
        self.undelivered = Counter(
            "soak_load_undelivered_total",
            "Prompts that were due and not sent, by reason.",
            ["reason"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "soak_requests_in_flight",
            "Requests of ours that the server has not answered yet.",
            ["purpose"],
            registry=registry,
        )
        self.schedule_lag = Histogram(
            "soak_schedule_lag_seconds",
            "How late load requests were sent. The lag is ours, never the server's.",
            buckets=LAG_BUCKETS,
            registry=registry,
        )
        self.loop_lag = Histogram(
            "soak_event_loop_lag_seconds",
            "How late soak's own event loop woke up.",
            buckets=LAG_BUCKETS,
            registry=registry,
        )
        self.late = Counter(
            "soak_late_samples_total",
            "Load requests that ended ok and are in no latency, because soak itself was late.",
            shape,
            registry=registry,
        )
        self.in_gaps = Counter(
            "soak_gap_requests_total",
            "Load requests lost while there was no server, by outcome. In no other count of requests.",
            ["outcome"],
            registry=registry,
        )
        self.gaps = Counter(
            "soak_target_gaps_total",
            "Times that the server went away, or began anew, by whether it was restarted.",
            ["restarted"],
            registry=registry,
        )
        self.gone = Counter(
            "soak_target_gone_seconds_total", "Seconds without the server.", registry=registry
        )
        self.budget_used = Gauge(
            "soak_budget_used_ratio",
            "Share of a budget in use, 1 is all of it.",
            ["budget"],
            registry=registry,
        )


class AdaptiveFamilies:
    """The decisions of an adaptive run, and the load that the latest of them asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "soak_adaptive_decisions_total",
            "Decisions by which this run's load was changed. Nothing on a run that is not adaptive.",
            registry=registry,
        )
        self.together = Gauge(
            "soak_adaptive_together",
            "Plan indices that start at once by the latest decision; 0 before any.",
            registry=registry,
        )
        self.burst = Gauge(
            "soak_adaptive_burst",
            "Most prompts of a burst by the latest decision; 0 before any.",
            registry=registry,
        )
        self.context = Gauge(
            "soak_adaptive_context_tokens",
            "Longest prompt and output together by the latest decision; 0 before any.",
            registry=registry,
        )
        self.weight = Gauge(
            "soak_adaptive_weight",
            "Weight of a shape by the latest decision.",
            ["shape"],
            registry=registry,
        )


class ProbeFamilies:
    """Probes and what they measured."""

    def __init__(self, registry: CollectorRegistry) -> None:
        shape_kind = ["shape", "kind"]
        compared = ["shape", "kind", "comparison"]
        self.probes = Counter(
            "soak_probes_total",
            "Probes by shape, resume kind and outcome. Only outcome valid compared anything.",
            ["shape", "kind", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "soak_probe_duration_seconds",
            "Time one probe took, all its passes together.",
            ["shape"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.k3 = Histogram(
            "soak_divergence_k3_nats",
            "Mean k3 over the scored tokens of one comparison with the cold pass: "
            "of the probe, its control, a repeated cold pass, or what was served while generating.",
            compared,
            buckets=NATS_BUCKETS,
            registry=registry,
        )
        self.max_abs = Histogram(
            "soak_divergence_max_abs_nats",
            "Largest absolute logprob difference over the scored tokens of one comparison with cold.",
            compared,
            buckets=NATS_BUCKETS,
            registry=registry,
        )
        self.coarsened = Histogram(
            "soak_divergence_coarsened_kl_nats",
            "A lower bound of the mean KL divergence of the warm pass from the cold one, from the candidates "
            "that both list (probe.top_k).",
            shape_kind,
            buckets=NATS_BUCKETS,
            registry=registry,
        )
        self.bit_exact = Counter(
            "soak_divergence_bit_exact_total",
            "Comparisons that agreed to the last bit.",
            compared,
            registry=registry,
        )
        self.amnesia = Histogram(
            "soak_amnesia_ratio",
            "Share of the far context's contribution that was lost: 0 remembers all, 1 nothing. "
            "Less than 0 is noise and counts as 0.",
            shape_kind,
            buckets=AMNESIA_BUCKETS,
            registry=registry,
        )
        self.amnesia_undefined = Counter(
            "soak_amnesia_undefined_total",
            "Probes whose far context contributed too little to say what is lost of it.",
            shape_kind,
            registry=registry,
        )
        self.needles = Counter(
            "soak_needle_recalls_total",
            "Facts asked for, by their depth in per cent of the document, by side (cold, cached) and by "
            "how they were recalled (exact, likely, lost).",
            ["depth", "recall", "side"],
            registry=registry,
        )
        self.onset = Histogram(
            "soak_onset_tokens",
            "Place of the first differing token after the resume boundary, of probes that differ at all.",
            shape_kind,
            buckets=ONSET_BUCKETS,
            registry=registry,
        )
        self.tokens = Counter(
            "soak_probe_tokens_total",
            "Prefill tokens that probes asked of the server.",
            ["shape"],
            registry=registry,
        )
        self.evicted = Counter(
            "soak_victims_evicted_total",
            "Probes whose victim was not cached any more.",
            ["shape"],
            registry=registry,
        )
        self.last_valid = Gauge(
            "soak_last_valid_probe_timestamp_seconds",
            "When the last valid probe ended, seconds since 1970; 0 before the first.",
            registry=registry,
        )


class VerdictFamilies:
    """What the detectors say, what was covered, and what all of it is about."""

    def __init__(self, registry: CollectorRegistry) -> None:
        kind = ["kind"]
        self.verdict = Gauge(
            "soak_verdict", "1 for the verdict in force, 0 for the others.", ["verdict"], registry=registry
        )
        self.alarms = Gauge(
            "soak_alarms",
            "Alarms that stand, by channel, shape, verdict and digest of the server's fingerprint; acked no "
            "is worth a page, known and until are muted by a person.",
            ["channel", "shape", "verdict", "acked", "fingerprint"],
            registry=registry,
        )
        self.state_saved = Gauge(
            "soak_state_saved_timestamp_seconds",
            "When evidence and alarms were last saved, seconds since 1970; 0 for a run without a state file.",
            registry=registry,
        )
        self.evidence = Gauge(
            "soak_evidence_nats",
            "Natural logarithm of a stream's evidence against a healthy cache.",
            ["stream"],
            registry=registry,
        )
        self.combined = Gauge(
            "soak_evidence_combined_nats",
            "Natural logarithm of the evidence of all streams together, which is what the bar is for: "
            "main can make CORRUPT, paired alone only SUSPECT.",
            ["evidence"],
            registry=registry,
        )
        self.bar = Gauge(
            "soak_evidence_bar_nats",
            "Natural logarithm of the combined evidence that makes an alarm; 0 while there is none.",
            registry=registry,
        )
        self.run_length = Gauge(
            "soak_guaranteed_run_length_probes",
            "Average number of probes to a false alarm that the detectors guarantee at least; "
            "0 while no resume kind is calibrated.",
            registry=registry,
        )
        self.controls = Gauge(
            "soak_calibration_controls", "Controls seen of a resume kind.", kind, registry=registry
        )
        self.controls_needed = Gauge(
            "soak_calibration_controls_needed", "Controls a resume kind needs.", kind, registry=registry
        )
        self.calibrated = Gauge(
            "soak_calibration_ready", "1 when a resume kind is calibrated.", kind, registry=registry
        )
        self.mode = Gauge(
            "soak_detector_mode",
            "1 for the mode a resume kind is judged in: exact, tolerance or calibrating.",
            ["kind", "mode"],
            registry=registry,
        )
        self.threshold = Gauge(
            "soak_calibration_threshold_nats",
            "Score over which a probe counts as an exceedance.",
            kind,
            registry=registry,
        )
        self.p0 = Gauge(
            "soak_calibration_p0_ratio",
            "Upper confidence bound on how often a healthy probe exceeds the threshold.",
            kind,
            registry=registry,
        )
        self.control_floor = Gauge(
            "soak_calibration_control_floor_nats", "Median score of controls.", kind, registry=registry
        )
        self.cold_floor = Gauge(
            "soak_calibration_cold_floor_nats",
            "Median score of repeated cold passes.",
            kind,
            registry=registry,
        )
        self.coverage = Gauge(
            "soak_coverage_state",
            "1 for the state a conjunction of conditions is in, 0 for the others.",
            ["conjunction", "state"],
            registry=registry,
        )
        self.reached = Counter(
            "soak_coverage_reached_total",
            "Times a conjunction was reached.",
            ["conjunction"],
            registry=registry,
        )
        self.coverage_probes = Counter(
            "soak_coverage_probes_total",
            "Valid probes of a victim that a conjunction touched.",
            ["conjunction"],
            registry=registry,
        )
        self.coverage_last = Gauge(
            "soak_coverage_last_reached_timestamp_seconds",
            "When a conjunction was last reached, seconds since 1970; 0 for never.",
            ["conjunction"],
            registry=registry,
        )
        self.target_up = Gauge("soak_target_up", "1 while the server under test answers.", registry=registry)
        self.started = Gauge(
            "soak_run_start_timestamp_seconds", "When the run started, seconds since 1970.", registry=registry
        )
        self.build = Info("soak_build", "Versions of soak and of its plan.", registry=registry)
        self.target = Info(
            "soak_target",
            "Digest of the server's fingerprint, and whether it is the simulator.",
            registry=registry,
        )
        self.annotations = Counter(
            "soak_grafana_annotations_total",
            "Annotations for Grafana by outcome: sent, or dropped since it was down too long or refused "
            "them.",
            ["outcome"],
            registry=registry,
        )
        self.runner_fix = Info(
            "soak_server_runner_fix",
            "What the server's installation has of a known fault, by the record of its image.",
            ["fault"],
            registry=registry,
        )


class ChaosFamilies:
    """What an experiment does on purpose. None of it moves for a plain run."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.actions = Counter(
            "soak_chaos_actions_total",
            "Actions of an experiment that are over, by outcome: done, failed or undone before their time.",
            ["action", "outcome"],
            registry=registry,
        )
        self.in_force = Gauge(
            "soak_chaos_actions_in_force",
            "Actions of an experiment that are in force.",
            ["action"],
            registry=registry,
        )


class JournalFamilies:
    """What the journal holds and what it lost. None of it moves for a run without a journal."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Counter("soak_journal_rows", "Rows written to the journal.", registry=registry)
        self.dropped = Counter(
            "soak_journal_dropped",
            "Rows that the journal lost, because the disk was full or too slow.",
            registry=registry,
        )
        self.bytes = Gauge("soak_journal_bytes", "Bytes in use inside the journal.", registry=registry)
