"""Budgets of shards: together they are the config's, and the plan does not know how many there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak import config as configs
from soak.plan.geometry import Geometry
from soak.run.sharing import own_share, replica_of, shard_facts


def built(shard: int = 0, shards: int = 1, **sections: dict[str, Any]) -> configs.Config:
    values: dict[str, Any] = {"run": {"shard": shard, "shards": shards, "nonce": 7}, **sections}
    return configs.build(values)


def all_of(shards: int, **sections: dict[str, Any]) -> list[configs.Config]:
    return [own_share(built(shard, shards, **sections)) for shard in range(shards)]


@given(st.integers(1, 12), st.integers(200, 5000), st.floats(1.0, 1e6), st.floats(0.1, 100.0))
def test_all_shards_together_keep_to_the_budget(
    shards: int, in_flight: int, tokens: float, rate: float
) -> None:
    parts = all_of(shards, budget={"in_flight": in_flight, "tokens_per_second": tokens}, probe={"rate": rate})
    assert sum(p.budget.in_flight or 0 for p in parts) == in_flight
    assert sum(p.budget.tokens_per_second or 0 for p in parts) == pytest.approx(tokens)
    assert sum(p.probe.rate for p in parts) == pytest.approx(rate)
    assert sum(p.pool_share_per_minute or 0 for p in parts) == pytest.approx(0.5)


@given(st.integers(1, 12))
def test_every_number_of_shards_has_the_same_plan_and_run_length(shards: int) -> None:
    whole = built(detect={"false_alarms_per_year": 1})
    geometry = Geometry()
    for shard in range(shards):
        part = built(shard, shards, detect={"false_alarms_per_year": 1})
        assert part.resolve(geometry).digest() == whole.resolve(geometry).digest()
        assert own_share(part).run_length == pytest.approx(whole.run_length)


def test_a_whole_run_is_left_as_it_is() -> None:
    whole = built(budget={"in_flight": 9})
    assert own_share(whole) is whole
    assert shard_facts(whole, "ab") is None


def test_a_pool_is_shared_by_the_shards_on_its_server() -> None:
    target = {"replicas": ["http://127.0.0.1:30001"]}
    parts = all_of(5, target=target)
    assert [p.target.url[-1] for p in parts] == ["0", "1", "0", "1", "0"]
    shares = [p.pool_share_per_minute for p in parts]
    assert shares == pytest.approx([0.5 / 3, 0.25, 0.5 / 3, 0.25, 0.5 / 3])
    assert replica_of(built(3, 5, target=target)) == "http://127.0.0.1:30001"


@pytest.mark.parametrize(
    ("shards", "sections", "words"),
    [
        (4, {"budget": {"in_flight": 20}}, "budget.in_flight: 20 over 4 shards leaves 5 .* at most 2 shards"),
        (
            1,
            {"target": {"replicas": ["http://127.0.0.1:30001"]}},
            "run.shards: 1 for 2 replicas .*--workers 2",
        ),
    ],
)
def test_what_does_not_reach_is_said_before_anything_is_sent(
    shards: int, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(configs.ConfigError, match=words):
        own_share(built(0, shards, **sections))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"replicas": ["ftp://x"]}, "target.replicas 'ftp://x'"),
        ({"replicas": ["http://k:y@h:1"]}, "target.replicas: keys do not belong"),
        ({"replicas": ["http://127.0.0.1:30000"]}, "named twice"),
        ({"replicas": ["http://gpu:1"]}, "allow_load"),
        ({"worker_header": "a b"}, "worker_header"),
    ],
)
def test_addresses_of_replicas_are_checked_as_the_first_one_is(target: dict[str, Any], words: str) -> None:
    with pytest.raises(configs.ConfigError, match=words):
        built(target=target)
