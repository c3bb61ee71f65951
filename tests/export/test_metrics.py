from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest

from soak.detect.verdict import DetectorReport, Verdict
from soak.export.families import NATS_BUCKETS
from soak.export.labels import BoundedLabel
from soak.export.metrics import RunMetrics
from soak.oracle.probe import ProbeOutcome
from tests.export.samples import COVERAGE, KIND, every_metric, observation, probe, report


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> RunMetrics:
    return RunMetrics(registry, shapes=("shared-prefix",), clock=lambda: 1_772_366_400.0)


ALARM = {"channel": "absolute", "shape": "shared-prefix", "verdict": "CORRUPT", "fingerprint": ""}


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def samples(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def test_load(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    every_metric(metrics)
    shape = {"shape": "shared-prefix"}
    assert value(registry, "soak_requests_total", **shape, outcome="ok") == 1
    assert value(registry, "soak_requests_total", **shape, outcome="timed_out") == 1
    assert value(registry, "soak_requests_total", **shape, outcome="malformed") == 0
    assert value(registry, "soak_request_latency_seconds_count", **shape) == 1
    assert value(registry, "soak_request_latency_seconds_sum", **shape) == pytest.approx(0.16)
    assert value(registry, "soak_time_to_first_token_seconds_sum", **shape) == pytest.approx(0.1)
    assert value(registry, "soak_inter_token_latency_seconds_count", **shape) == 3
    assert value(registry, "soak_prompt_tokens_total", **shape) == 32
    assert value(registry, "soak_completion_tokens_total", **shape) == 4
    assert value(registry, "soak_cached_tokens_total", **shape) == 16
    assert value(registry, "soak_schedule_lag_seconds_count") == 3
    assert value(registry, "soak_event_loop_lag_seconds_sum") == pytest.approx(0.003)
    assert value(registry, "soak_requests_in_flight", purpose="load") == 3
    assert value(registry, "soak_requests_in_flight", purpose="probe") == 2
    assert value(registry, "soak_budget_used_ratio", budget="probe_share") == 0.25
    assert value(registry, "soak_target_up") == 1


def test_counters_of_the_workloads_shapes_are_there_from_the_start(
    registry: CollectorRegistry, metrics: RunMetrics
) -> None:
    for name in ("soak_victims_evicted_total", "soak_retractions_total", "soak_cached_tokens_total"):
        assert value(registry, name, shape="shared-prefix") == 0
    assert value(registry, "soak_requests_total", shape="shared-prefix", outcome="timed_out") == 0


def test_asked_and_delivered_follow_totals_and_never_fall(
    registry: CollectorRegistry, metrics: RunMetrics
) -> None:
    metrics.set_load(10, 9, {"server_busy": 1})
    metrics.set_load(30, 25, {"server_busy": 4, "in_flight": 1})
    metrics.set_load(20, 20, {"server_busy": 2})
    assert value(registry, "soak_load_asked_total") == 30
    assert value(registry, "soak_load_delivered_total") == 25
    assert value(registry, "soak_load_undelivered_total", reason="server_busy") == 4
    assert value(registry, "soak_load_undelivered_total", reason="in_flight") == 1


def test_probes(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    every_metric(metrics)
    kind = {"shape": "shared-prefix", "kind": "prefill"}
    assert value(registry, "soak_probes_total", **kind, outcome="valid") == 1
    assert value(registry, "soak_probes_total", **kind, outcome="evicted") == 1
    assert value(registry, "soak_probes_total", **kind, outcome="non_finite") == 0
    assert value(registry, "soak_victims_evicted_total", shape="shared-prefix") == 1
    assert value(registry, "soak_probe_tokens_total", shape="shared-prefix") == 200
    assert value(registry, "soak_divergence_max_abs_nats_sum", **kind, comparison="probe") == 0.5
    assert value(registry, "soak_divergence_bit_exact_total", **kind, comparison="probe") == 0
    assert value(registry, "soak_divergence_bit_exact_total", **kind, comparison="control") == 1
    assert value(registry, "soak_onset_tokens_bucket", **kind, le="4.0") == 1
    assert value(registry, "soak_onset_tokens_bucket", **kind, le="2.0") == 0
    assert value(registry, "soak_amnesia_ratio_bucket", **kind, le="0.25") == 1
    assert value(registry, "soak_amnesia_ratio_bucket", **kind, le="0.2") == 0
    assert value(registry, "soak_last_valid_probe_timestamp_seconds") == 1_772_366_400.0


def test_an_invalid_probe_is_no_sign_of_life(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    metrics.observe_probe(probe(outcome=ProbeOutcome.COLD_HIT))
    assert value(registry, "soak_last_valid_probe_timestamp_seconds") == 0


def test_divergence_buckets_hold_zero_lowest_and_infinity_last(
    registry: CollectorRegistry, metrics: RunMetrics
) -> None:
    assert NATS_BUCKETS[0] == 1e-8
    assert NATS_BUCKETS[-1] == 30.0
    ratios = [b / a for a, b in itertools.pairwise(NATS_BUCKETS)]
    assert min(ratios) > 2.9 and max(ratios) < 3.5
    labels = {"shape": "shared-prefix", "kind": "prefill", "comparison": "probe"}
    metrics.observe_probe(probe(size=0.0))
    assert value(registry, "soak_divergence_k3_nats_bucket", **labels, le="1e-08") == 1
    wild = probe()
    assert wild.divergence is not None
    wild.divergence = replace(wild.divergence, k3=math.inf, max_abs=900.0)
    metrics.observe_probe(wild)
    assert value(registry, "soak_divergence_k3_nats_bucket", **labels, le="30.0") == 1
    assert value(registry, "soak_divergence_k3_nats_bucket", **labels, le="+Inf") == 2
    total = value(registry, "soak_divergence_k3_nats_sum", **labels)
    assert total is not None and math.isfinite(total)


def test_exactly_one_verdict_holds(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    for verdict in Verdict:
        metrics.set_verdict(verdict)
        held = {v.value: value(registry, "soak_verdict", verdict=v.value) for v in Verdict}
        assert held == {v.value: float(v is verdict) for v in Verdict}


def test_report(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    metrics.set_report(report(Verdict.CORRUPT))
    assert value(registry, "soak_evidence_nats", stream="shared-prefix/512/prefill") == 3.5
    assert value(registry, "soak_evidence_combined_nats", evidence="main") == 3.5
    assert value(registry, "soak_evidence_combined_nats", evidence="paired") == 0.4
    assert value(registry, "soak_evidence_bar_nats") == 13.8
    assert value(registry, "soak_guaranteed_run_length_probes") == pytest.approx(math.exp(13.8))
    assert value(registry, "soak_calibration_p0_ratio", kind="prefill") == 0.18
    assert value(registry, "soak_calibration_controls_needed", kind="prefill") == 60
    assert value(registry, "soak_detector_mode", kind="prefill", mode="tolerance") == 1
    assert value(registry, "soak_detector_mode", kind="prefill", mode="exact") == 0
    assert value(registry, "soak_alarms", **ALARM, acked="no") == 1


def test_a_muted_alarm_is_no_page_and_still_there(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    found = report(Verdict.CORRUPT)
    metrics.set_report(found)
    metrics.set_report(found, {found.alarms[0]: "known"})
    assert value(registry, "soak_alarms", **ALARM, acked="no") == 0
    assert value(registry, "soak_alarms", **ALARM, acked="known") == 1
    assert value(registry, "soak_alarms", **ALARM, acked="until") == 0
    metrics.set_state_saved(1_772_366_001.0)
    assert value(registry, "soak_state_saved_timestamp_seconds") == 1_772_366_001.0


def test_a_mute_from_an_earlier_run_shows_as_no_page(
    registry: CollectorRegistry, metrics: RunMetrics
) -> None:
    metrics.set_build_info("0.1.0", "1", "ab12", simulator=False)
    found = report(Verdict.CORRUPT)
    metrics.set_report(found, {found.alarms[0]: "until"})
    alarm = ALARM | {"fingerprint": "ab12"}
    assert value(registry, "soak_alarms", **alarm, acked="no") == 0
    assert value(registry, "soak_alarms", **alarm, acked="until") == 1


def test_an_acknowledged_alarm_and_its_stream_go_away(
    registry: CollectorRegistry, metrics: RunMetrics
) -> None:
    metrics.set_report(report(Verdict.CORRUPT))
    metrics.set_report(DetectorReport(Verdict.CLEAN, log_bar=13.8))
    assert value(registry, "soak_alarms", **ALARM, acked="no") == 0
    assert value(registry, "soak_evidence_nats", stream="shared-prefix/512/prefill") is None
    assert value(registry, "soak_evidence_combined_nats", evidence="main") is None
    metrics.set_report(report(Verdict.CORRUPT))
    assert value(registry, "soak_evidence_combined_nats", evidence="main") == 3.5


def test_no_guarantee_before_a_kind_is_calibrated(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    unready = replace(KIND, ready=False, mode="calibrating", p0=None, threshold=None)
    metrics.set_report(DetectorReport(Verdict.CALIBRATING, kinds=(unready,), log_bar=13.8))
    assert value(registry, "soak_guaranteed_run_length_probes") == 0
    assert value(registry, "soak_calibration_ready", kind="prefill") == 0
    assert value(registry, "soak_calibration_p0_ratio", kind="prefill") is None


def test_coverage(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    metrics.run_started(1000.0)
    metrics.set_coverage(COVERAGE)
    metrics.set_coverage([replace(COVERAGE[0], count=9), COVERAGE[1]])
    name = {"conjunction": "chunked prefill beside another"}
    assert value(registry, "soak_coverage_state", **name, state="confirmed") == 1
    assert value(registry, "soak_coverage_state", **name, state="presumed") == 0
    assert value(registry, "soak_coverage_reached_total", **name) == 9
    assert value(registry, "soak_coverage_probes_total", **name) == 5
    assert value(registry, "soak_coverage_last_reached_timestamp_seconds", **name) == 1061.5
    never = {"conjunction": "retraction"}
    assert value(registry, "soak_coverage_last_reached_timestamp_seconds", **never) == 0


def test_build_and_target(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    every_metric(metrics)
    assert value(registry, "soak_build_info", version="0.1.0", plan_version="1") == 1
    assert value(registry, "soak_target_info", fingerprint="ab12", simulator="true") == 1


def test_ten_thousand_requests_make_no_new_series(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    every_metric(metrics)
    before = samples(registry)
    for number in range(10_000):
        metrics.observe_load(observation(rid=f"soak-{number:012d}", chunk_s=()))
    for number in range(1000):
        metrics.observe_probe(probe(number=number))
    assert samples(registry) == before


def test_careless_labels_cannot_fill_a_prometheus(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    for number in range(2000):
        metrics.observe_load(observation(shape=f"shape-{number}", chunk_s=()))
        metrics.set_budget_used(f"budget-{number}", 0.5)
    metrics.set_load(4000, 0, {f"reason-{number}": 2 for number in range(2000)})
    text = generate_latest(registry).decode()
    assert len(set(re.findall(r'shape="([^"]*)"', text))) == 65
    assert len(set(re.findall(r'reason="([^"]*)"', text))) == 33
    assert value(registry, "soak_load_undelivered_total", reason="other") == 2 * (2000 - 32)
    assert len(set(re.findall(r'budget="([^"]*)"', text))) == 17


def test_a_bounded_label_knows_what_it_let_through() -> None:
    label = BoundedLabel(2)
    assert [label(v) for v in ("a", "b", "c", "a", "c")] == ["a", "b", "other", "a", "other"]


def families(registry: CollectorRegistry) -> Iterator[Metric]:
    yield from registry.collect()


def test_names_follow_the_conventions(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    every_metric(metrics)
    units = ("_seconds", "_ratio", "_nats", "_tokens", "_probes", "_timestamp_seconds")
    for family in families(registry):
        assert re.fullmatch(r"soak_[a-z0-9_]+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        if family.type == "counter":
            assert all(s.name.endswith("_total") for s in family.samples), family.name
        if family.type == "histogram":
            assert family.name.endswith(units), family.name
        assert not any("_created" in s.name for s in family.samples), family.name


FORBIDDEN_LABELS = {"rid", "seed", "nonce", "incident", "id", "url", "target", "address", "le_"}


def test_no_label_names_what_grows(registry: CollectorRegistry, metrics: RunMetrics) -> None:
    every_metric(metrics)
    used = {label for family in families(registry) for s in family.samples for label in s.labels}
    assert not used & FORBIDDEN_LABELS
    assert used == {
        "acked", "action", "budget", "channel", "comparison", "conjunction", "depth", "evidence", "fault",
        "fingerprint", "kind", "le", "mode", "outcome", "plan_version", "purpose", "reason", "recall",
        "restarted", "shape", "side", "simulator", "state", "stream", "verdict", "version",
    }  # fmt: skip
