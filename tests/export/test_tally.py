from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from soak.export.tally import Tally, inter_token_gaps
from soak.oracle.probe import ProbeOutcome
from soak.sglang.exchange import Outcome
from tests.export.samples import filled_tally, observation, probe


def test_failures_stay_out_of_latencies() -> None:
    tally = Tally()
    tally.observe_load(observation())
    tally.observe_load(observation(outcome=Outcome.REJECTED, chunk_s=()))
    seen = tally.requests["shared-prefix"]
    assert tally.outcomes == {"ok": 1, "rejected": 1}
    assert seen.latency.count == seen.ttft.count == 1
    assert seen.latency.quantile(0.5) == pytest.approx(0.16, rel=0.01)
    assert seen.ttft.quantile(0.5) == pytest.approx(0.1, rel=0.01)


def test_latency_quantiles_are_over_all_shapes() -> None:
    tally = Tally()
    assert tally.latency_quantile("ttft", 0.99) is None
    tally.observe_load(observation())
    tally.observe_load(observation("long-context", chunk_s=(12.0, 14.0)))
    assert tally.latency_quantile("ttft", 0.99) == 2.0
    assert tally.latency_quantile("latency", 0.5) == pytest.approx(0.16, rel=0.01)


def test_gaps_between_tokens_add_up_to_the_decode_time() -> None:
    one_token_each = inter_token_gaps(observation().answer)
    assert one_token_each == pytest.approx([0.02, 0.02, 0.02])
    two_chunks_of_eight = inter_token_gaps(observation(chunk_s=(1.0, 1.8), tokens=9).answer)
    assert two_chunks_of_eight == pytest.approx([0.1])
    assert not inter_token_gaps(observation(chunk_s=(), tokens=4).answer)
    assert not inter_token_gaps(observation(chunk_s=(1.0, 1.1), tokens=1).answer)


def test_probes_are_counted_apart_by_what_they_mean() -> None:
    tally = filled_tally()
    assert tally.probes_valid == 20
    assert tally.probes_invalid == {"cold_hit": 1}
    assert tally.victims_evicted == 1
    assert tally.hard_alarms == {"non_finite": 1}


def test_divergence_and_amnesia_by_shape() -> None:
    tally = Tally()
    for size in (0.0, 0.5, 0.5):
        tally.observe_probe(probe(size=size, control=None))
    found = tally.probes["shared-prefix"].divergence_dict()
    assert found["probe"]["count"] == 3
    assert found["probe"]["bit_exact"] == 1
    assert found["probe"]["tokens"] == 96
    assert found["probe"]["max_abs"]["max"] == 0.5
    assert found["probe"]["median_abs"]["median"] == pytest.approx(0.5, rel=0.01)
    assert found["control"]["count"] == 0
    assert found["control"]["k3"]["median"] is None
    assert found["cold_repeat"]["bit_exact"] == 3
    assert found["served"]["count"] == 0
    assert tally.probes["shared-prefix"].amnesia_dict()["max"] == pytest.approx(0.25)


def test_coarsened_divergence_is_there_where_candidates_were_listed() -> None:
    tally, plain = Tally(), probe(size=0.5, shape="long-context")
    plain.coarsened = None
    for result in (probe(size=0.5), probe(size=1.0), plain):
        tally.observe_probe(result)
    seen = tally.probes["shared-prefix"].coarsened_dict()
    assert seen["count"] == 2
    assert seen["max"] == pytest.approx(0.5, rel=0.05)
    assert tally.probes["long-context"].coarsened_dict() == {
        "count": 0, "median": None, "p90": None, "max": None,
    }  # fmt: skip


def test_an_amnesia_that_cannot_be_told_is_counted_as_such() -> None:
    tally = Tally()
    result = probe()
    assert result.amnesia is not None
    result.amnesia = type(result.amnesia)(None, None, 0.5, 8)
    tally.observe_probe(result)
    assert tally.probes["shared-prefix"].amnesia_dict() == {
        "count": 0, "undefined": 1, "median": None, "p90": None, "max": None,
    }  # fmt: skip


def test_invalid_probes_carry_no_divergence() -> None:
    tally = Tally()
    result = probe()
    result.outcome = ProbeOutcome.BOUNDARY_MOVED
    tally.observe_probe(result)
    assert tally.probes["shared-prefix"].probe.as_dict()["count"] == 0
    assert not tally.recent_k3


def test_memory_stays_flat() -> None:
    rng = np.random.default_rng(1)
    seen = [
        observation(chunk_s=tuple(10.0 + np.cumsum(rng.exponential(0.02, 8))), tokens=8) for _ in range(50)
    ]
    probes = [probe(size=float(rng.exponential(0.01))) for _ in range(50)]
    tally = Tally()

    def feed(times: int) -> None:
        for _ in range(times):
            for each, result in zip(seen, probes, strict=True):
                tally.observe_load(each)
                tally.observe_probe(result)
                tally.observe_loop_lag(0.001)

    feed(2)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        feed(40)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
