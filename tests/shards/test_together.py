"""One verdict over shards: what adds up, what is the largest, and what is never turned down."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from soak.cli import main
from soak.detect.edetector import EDetector
from soak.export.closing import closing_words
from soak.shards.figures import added
from soak.shards.together import TOGETHER, NotShards, Sum, sum_of, told_of_shards

BAR = math.log(1e6)
ASKS = {
    "min_valid_probes": 20,
    "require_coverage": None,
    "thresholds": {"delivered_share": 0.95, "error_share": 0.01, "ttft_p99": None, "latency_p99": 1.0},
}


def figures(count: int, p99: float) -> dict[str, Any]:
    return {"count": count, "mean": p99 / 2, "p50": p99 / 2, "p90": p99, "p99": p99, "max": p99}


def shard(number: int, of: int = 2, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "shard": {"number": number, "of": of, "run_id": "ab", "asks": ASKS},
        "verdict": "VACUOUS", "exit_code": 3, "interrupted": False, "reasons": [], "simulator": True,
        "target": "http://h:1", "fingerprint": {"version": "1"}, "replay_command": "soak run",
        "started_at": f"2026-01-01T00:00:0{number}Z", "ended_at": "2026-01-01T00:01:00Z", "duration_s": 60.0,
        "first_index": 0, "journal": None, "incidents": [], "worst_probe": None, "gaps": [],
        "detector": {
            "verdict": "CLEAN", "statement": "s", "reasons": [], "alarms": [], "kinds": [],
            "log_evidence": {"a/64/prefill": 1.0}, "log_bar": BAR, "log_sum": 3.0, "log_sum_paired": None,
            "log_channels": {},
        },
        "probes": {
            "total": 14, "valid": 12, "valid_share": 1.0, "invalid": {"cold_hit": 1}, "hard_alarms": {},
            "victims_evicted": 1, "tokens_spent": 100, "seconds": figures(14, 0.5),
            "by_shape": {"a": {"valid": 12}},
        },
        "coverage": [
            {"name": "prefix-hit", "state": "confirmed" if number else "not-reached", "count": number,
             "last_s": 3.0 if number else None, "probes": 2, "reached_by": "a", "note": "", "needed_by": []},
        ],
        "load": {
            "asked": 100, "delivered": 99, "delivered_ratio": 0.99, "undelivered": {"in-flight-cap": 1},
            "outcomes": {"ok": 99}, "in_gaps": {}, "late_samples": 0, "schedule_lag_s": figures(99, 0.01),
            "loop_lag_s": figures(9, 0.01),
        },
        "requests": {"a": {"outcomes": {"ok": 99}, "latency_s": figures(99, 0.1 + number / 10),
                           "ttft_s": figures(99, 0.1)}},
        "divergence": {}, "coarsened_kl": {}, "amnesia": {}, "workers": [],
    }  # fmt: skip
    for path, value in changes.items():
        place = made
        *way, last = path.split("__")
        for key in way:
            place = place[key]
        place[last] = value
    return made


def alarm() -> dict[str, Any]:
    return {"verdict": "CORRUPT", "channel": "absolute", "stream": "a/64/prefill", "shape": "a",
            "evidence": "e", "probes": [3]}  # fmt: skip


def test_shards_that_are_each_too_small_are_enough_together() -> None:
    whole = told_of_shards([shard(1), shard(0)])
    assert (whole["verdict"], whole["exit_code"]) == ("CLEAN", 0)
    assert whole["probes"]["valid"] == 24
    assert whole["probes"]["valid_share"] == pytest.approx(24 / 26)
    assert whole["load"]["asked"] == 200
    assert whole["load"]["delivered_ratio"] == pytest.approx(0.99)
    assert whole["requests"]["a"]["latency_s"]["p99"] == pytest.approx(0.2)
    assert whole["requests"]["a"]["latency_s"]["mean"] == pytest.approx(0.075)
    assert whole["coverage"][0] | {"note": ""} == whole["coverage"][0]
    assert (whole["coverage"][0]["state"], whole["coverage"][0]["probes"]) == ("confirmed", 4)
    assert whole["started_at"] == "2026-01-01T00:00:00Z"
    assert "2 shards" in whole["detector"]["statement"]
    assert "at least 98%" in whole["detector"]["statement"]
    assert "CLEAN" in closing_words(whole)


@pytest.mark.parametrize(
    ("changed", "verdict", "code"),
    [
        ({"detector__verdict": "CORRUPT", "detector__alarms": [alarm()]}, "CORRUPT", 1),
        ({"detector__verdict": "SUSPECT"}, "SUSPECT", 1),
        ({"detector__verdict": "CALIBRATING"}, "CALIBRATING", 3),
        ({"detector__verdict": "CALIBRATING", "probes__valid": 4}, "VACUOUS", 3),
        ({"verdict": "CORRUPT"}, "CORRUPT", 1),  # of an earlier server
        ({"coverage": [], "probes__valid": 12}, "VACUOUS", 3),
        ({"exit_code": 4}, "CLEAN", 4),
        ({"interrupted": True}, "CLEAN", 130),
        ({"load__delivered": 50, "load__outcomes": {"ok": 50}}, "CLEAN", 5),
        ({"requests__a__latency_s": figures(9, 2.0)}, "CLEAN", 5),
    ],
)
def test_one_shard_can_spoil_it(changed: dict[str, Any], verdict: str, code: int) -> None:
    whole = told_of_shards([shard(0), shard(1, **changed)])
    assert (whole["verdict"], whole["exit_code"]) == (verdict, code)


def test_evidence_of_all_may_reach_what_no_shard_s_own_does() -> None:
    parts = [shard(n, detector__log_sum=BAR - 0.5) for n in range(2)]
    whole = told_of_shards(parts)
    assert (whole["verdict"], whole["exit_code"]) == ("SUSPECT", 1)
    assert [a["channel"] for a in whole["detector"]["alarms"]] == [TOGETHER]
    assert TOGETHER in closing_words(whole)
    # and if it was so only for a while
    again = told_of_shards([shard(0), shard(1)], sums=[Sum(BAR + 0.1, BAR)])
    assert again["verdict"] == "SUSPECT"
    assert told_of_shards([shard(0), shard(1)], sums=[Sum(BAR - 0.1, BAR)])["verdict"] == "CLEAN"


def test_each_server_is_judged_by_its_own_shards() -> None:
    bad = shard(1, target="http://h:2", detector__verdict="CORRUPT", detector__alarms=[alarm()])
    third = shard(2, of=3)
    whole = told_of_shards([shard(0, of=3), {**bad, "shard": {**bad["shard"], "of": 3}}, third])
    rows = {row["target"]: row for row in whole["replicas"]}
    assert rows["http://h:1"]["verdict"] == "CLEAN"
    assert rows["http://h:1"]["shards"] == [0, 2]
    assert rows["http://h:2"]["verdict"] == whole["verdict"] == "CORRUPT"
    assert "  http://h:2: CORRUPT, 12 valid probes" in closing_words(whole).splitlines()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "no summary of any shard"),
        ([{**shard(0), "shard": None}], "is of a whole run"),
        ([shard(0), shard(0)], "given twice"),
        ([shard(1, of=3)], "no summary: 0, 2"),
        ([shard(0), {**shard(1), "shard": {**shard(1)["shard"], "run_id": "cd"}}], "of different runs"),
    ],
)
def test_what_is_no_run_is_refused(parts: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(NotShards, match=words):
        told_of_shards(parts)


def test_a_shard_that_is_lost_is_said_and_ends_in_no_clean_exit() -> None:
    whole = told_of_shards([shard(0)], lost=["shard 1: gone"])
    assert whole["exit_code"] == 4
    assert "shard 1: gone" in whole["reasons"]


@given(st.lists(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=30), min_size=1, max_size=5))
def test_the_sum_over_shards_is_that_of_one_detector_with_all_their_streams(
    shares: list[list[float]],
) -> None:
    whole, parts = EDetector([1.0]), []
    for number, bets in enumerate(shares):
        part = EDetector([1.0])
        for bet in bets:
            part.update("s", [bet])
            whole.update(f"{number}", [bet])
        parts.append((part.log_sum(), BAR))
    together = sum_of(parts)
    assert together is not None
    assert together.log_peak == pytest.approx(whole.log_sum())


def test_the_average_run_length_over_shards_is_at_least_a() -> None:
    """Healthy bets in turn on 4 shards: probes of all together until their sum reaches A."""
    rng, bar, lengths = np.random.default_rng(1), math.log(50.0), []
    for _ in range(300):
        parts, probes = [EDetector([1.0]) for _ in range(4)], 0
        while (now := sum_of((p.log_sum(), bar) for p in parts)) is None or not now.reached:
            held = rng.random() < 0.1
            parts[probes % 4].update("s", [math.log1p(0.3 * ((1.0 if held else 0.0) - 0.1) / 0.1)])
            probes += 1
        lengths.append(probes)
    spread = float(np.std(lengths)) / math.sqrt(len(lengths))
    assert float(np.mean(lengths)) + 4 * spread > 50


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5))
def test_counts_add_and_quantiles_are_the_largest(values: list[int]) -> None:
    whole = added([{"count": v, "p99": v, "by": {f"k{v % 2}": v}, "none": None} for v in values])
    assert whole["count"] == sum(values) == sum(whole["by"].values())
    assert whole["p99"] == max(values)
    assert whole["none"] is None


def test_join_is_a_command(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"s{number}"
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(shard(number)))
    runner = CliRunner()
    done = runner.invoke(
        main, ["join", str(tmp_path / "s0"), str(tmp_path / "s1"), "--out", str(tmp_path / "o")]
    )
    assert done.exit_code == 0, done.output
    assert done.output.startswith("CLEAN")
    assert json.loads((tmp_path / "o").read_text())["verdict"] == "CLEAN"
    refused = runner.invoke(main, ["join", str(tmp_path / "s0")])
    assert refused.exit_code == 2
    assert "no summary: 1" in refused.output
    missing = runner.invoke(main, ["join", str(tmp_path / "nowhere")])
    assert missing.exit_code == 2


def test_made_up_summaries_are_not_changed() -> None:
    parts = [shard(0), shard(1)]
    before = copy.deepcopy(parts)
    told_of_shards(parts)
    assert parts == before


def test_the_servers_before_the_last_one_are_those_of_every_shard() -> None:
    first, second = (
        shard(number, earlier_servers=[shard(number, ended_at=ended, reasons=["why"])])
        for number, ended in ((0, "2026-01-01T00:00:40Z"), (1, "2026-01-01T00:00:30Z"))
    )
    told = told_of_shards([first, second])
    assert [(e["shard"]["number"], e["reasons"]) for e in told["earlier_servers"]] == [
        (1, ["shard 1: why"]),
        (0, ["shard 0: why"]),
    ]
    assert first["earlier_servers"][0]["reasons"] == ["why"], "what was given is not changed"
    assert told_of_shards([shard(0), shard(1)])["earlier_servers"] == []
