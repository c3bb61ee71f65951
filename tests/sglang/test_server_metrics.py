"""The server's own /metrics, in the spellings that releases have used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.sglang.server_metrics import ServerMetrics, parse_loads, parse_metrics

LABELS = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
PAGE = f"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{LABELS}}} 3.0
sglang:num_queue_reqs{{{LABELS}}} 2.0
sglang:token_usage{{{LABELS}}} 0.25
sglang:full_token_usage{{{LABELS}}} 0.5
sglang:mamba_usage{{{LABELS}}} 0.75
sglang:swa_token_usage{{{LABELS}}} 0.0
sglang:cache_hit_rate{{{LABELS}}} 0.4
sglang:num_retracted_requests_total{{{LABELS}}} 4.0
sglang:num_aborted_requests_total{{{LABELS}}} 5.0
sglang:prompt_tokens_total{{{LABELS},is_streaming="false"}} 100.0
sglang:prompt_tokens_total{{{LABELS},is_streaming="true"}} 11.0
sglang:generation_tokens_total{{{LABELS}}} 7.0
sglang:cached_tokens_total{{cache_source="device",{LABELS}}} 60.0
sglang:cached_tokens_total{{cache_source="host",{LABELS}}} 6.0
sglang:evicted_tokens_total{{cache_type="full",{LABELS}}} 8.0
sglang:max_total_num_tokens{{{LABELS}}} 8192.0
sglang:fwd_occupancy{{{LABELS}}} NaN
sglang:time_to_first_token_seconds_bucket{{le="0.1",{LABELS}}} 1.0
"""
WHOLE = ServerMetrics(
    running=3,
    queued=2,
    token_usage=0.25,
    full_token_usage=0.5,
    mamba_usage=0.75,
    swa_usage=0.0,
    cache_hit_rate=0.4,
    retracted_total=4,
    aborted_total=5,
    prompt_tokens_total=111,
    generation_tokens_total=7,
    evicted_tokens_total=8,
    max_total_tokens=8192,
    cached_tokens_total={"device": 60, "host": 6},
)


@pytest.mark.parametrize(
    "page",
    [
        PAGE,
        PAGE.replace("sglang:", "sglang_"),
        PAGE.replace("_total{", "{").replace("max_num_tokens", "max_total_num_tokens"),
        PAGE.replace("\n", "\r\n"),
        PAGE.replace(" 3.0", " 3.0 1700000000000"),
    ],
)
def test_every_spelling(page: str) -> None:
    assert parse_metrics(page) == WHOLE


def test_what_is_absent_is_none() -> None:
    assert parse_metrics("") == ServerMetrics()
    assert parse_metrics("vllm:num_requests_running 3.0\n") == ServerMetrics()
    assert parse_metrics("sglang:token_usage NaN\nsglang:num_running_reqs +Inf\n") == ServerMetrics()


def test_ranks_of_one_replica_report_the_same_requests() -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {3 + dp}.0'
        for dp in (0, 1)
        for tp in (0, 1)
    ]
    lines += ['sglang:token_usage{dp_rank="0"} 0.2', 'sglang:token_usage{dp_rank="1"} 0.9']
    lines += [f'sglang:cached_tokens_total{{cache_source="host",tp_rank="{tp}"}} 7.0' for tp in (0, 1)]
    got = parse_metrics("\n".join(lines))
    assert (got.running, got.token_usage, got.cached_tokens_total) == (7, 0.9, {"host": 7})


def test_damaged_lines_do_not_hide_the_others() -> None:
    got = parse_metrics('sglang:num_queue_reqs{a="b 1\nsglang:num_queue_reqs\nsglang:num_running_reqs 2\n')
    assert (got.running, got.queued) == (2, None)


@given(st.text())
def test_any_text(text: str) -> None:
    parse_metrics(text)
    parse_metrics("\n".join(f"sglang:num_running_reqs{line}" for line in text.split("\n")))


def test_loads_of_several_ranks() -> None:
    body = {
        "timestamp": "2026-11-29T00:00:00+00:00",
        "loads": [
            {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.25,
             "max_total_num_tokens": 8192},
            {"dp_rank": 1, "num_running_reqs": 3, "token_usage": 0.5, "max_total_num_tokens": 8192},
        ],
    }  # fmt: skip
    assert parse_loads(body) == ServerMetrics(running=5, queued=1, token_usage=0.5, max_total_tokens=16384)


@pytest.mark.parametrize("body", [None, [], {}, {"loads": []}, {"loads": [3]}, {"loads": {"a": 1}}])
def test_what_is_no_loads(body: object) -> None:
    assert parse_loads(body) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["loads", "token_usage"]), inner),
    )
)
def test_any_loads(body: object) -> None:
    for value in (body, {"loads": [{"num_running_reqs": body, "token_usage": body}]}):
        seen = parse_loads(value)
        assert seen is None or seen.queued is None
