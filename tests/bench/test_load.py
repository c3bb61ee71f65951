"""`soak bench load`: its arithmetic, its words, and one very short bench of everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from soak.bench.load import bench, peers, report
from soak.bench.load.figures import Round, medians, paired_ratio, quantiles
from soak.cli.bench import command

SECONDS = st.floats(1e-6, 1e3)


def made(requests: int, cpu_s: float, **more: Any) -> Round:
    return Round(requests, more.pop("chunks", 0), 1.0, cpu_s, 1 << 20, **more)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_quantiles_are_order_statistics(values: list[float]) -> None:
    p50, p99, most = quantiles(values)
    assert {p50, p99, most} <= set(values)
    assert p50 <= p99 <= most == max(values)
    assert sum(v <= p50 for v in values) >= len(values) / 2
    assert sum(v <= p99 for v in values) >= 0.99 * len(values)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=9), st.floats(0.5, 20))
def test_what_slows_both_neighbours_changes_no_ratio(pairs: list[tuple[float, float]], slower: float) -> None:
    ours, theirs = [made(1000, a) for a, _ in pairs], [made(1000, b) for _, b in pairs]
    plain = paired_ratio(ours, theirs, "requests_per_cpu_s")
    ours[0], theirs[0] = made(1000, pairs[0][0] * slower), made(1000, pairs[0][1] * slower)
    assert paired_ratio(ours, theirs, "requests_per_cpu_s") == pytest.approx(plain)


def test_medians_and_nothing_to_compare() -> None:
    assert medians([made(1000, 1.0), made(1000, 3.0), made(1000, 2.0)])["cpu_s_per_1000"] == 2.0
    with pytest.raises(ValueError, match="no rounds"):
        paired_ratio([], [], "requests_per_s")
    with pytest.raises(ValueError, match="no such figure"):
        made(1, 1.0).figure("speed")


def measured(client: float = 0.9, whole: float = 0.5) -> bench.Measured:
    """A bench in which each takes so many times the bare client's CPU time less."""
    done = bench.Measured(machine={"machine": "2 cores", "Python": "3.11"})
    done.short = {
        "bare": [made(1000, 1.0)],
        "client": [made(1000, 1 / client)],
        "soak": [made(1000, 1 / whole)],
    }
    done.streamed = {name: [made(10, 1.0, chunks=640)] for name in done.short}
    done.rates = {200: {"soak": [made(1000, 0.1, lag_s=(0.001, 0.002, 0.01), loop_lag_s=(0, 0.001, 0.1))]}}
    done.peers = {"aiperf": peers.PeerRun("0.12", [peers.PeerRound(2500, 50.0, 30.0, 1 << 28)])}
    done.missing = {"guidellm": "not in build/peers/guidellm"}
    return done


def test_too_slow_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bench.Extent] = []

    def measure(extent: bench.Extent, _peers: object, _say: object) -> bench.Measured:
        asked.append(extent)
        return measured()

    monkeypatch.setattr(bench, "measure", measure)
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- soak bench load: begin -->\nold\n<!-- soak bench load: end -->\nafter\n",
        encoding="utf-8",
    )
    ran = CliRunner().invoke(
        command, ["load", "--short", "--at-least", "0.8", "--whole-at-least", "0.4", "--page", str(page)]
    )
    assert ran.exit_code == 0, ran.output
    assert asked == [bench.SHORT]
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert "| soak, client alone | 1,000 | 1.00 x | 1.111 | 0.90 x | 1 MiB |" in text
    assert "| aiperf 0.12 | 83 | 0.08 x | 20.000 | 0.050 x | 256 MiB |" in text
    assert "| soak, a whole run, 200/s | 1.00 | 2.00 | 10.00 | 1.00 | 10% |" in text
    assert "guidellm was not measured: not in build/peers/guidellm." in text
    for options, words in (
        (["--at-least", "0.95"], "soak, client alone: 0.90 times"),
        (["--whole-at-least", "0.6"], "soak, a whole run: 0.50 times"),
    ):
        ran = CliRunner().invoke(command, ["load", *options])
        assert (ran.exit_code, words in ran.output) == (1, True)
    assert json.loads(CliRunner().invoke(command, ["load", "--json"]).output)["ratios"]["soak"] == 0.5


def test_peers_that_are_not_there_are_named(tmp_path: Path) -> None:
    found, missing = peers.installed(tmp_path)
    assert not found
    assert set(missing) == {"guidellm", "aiperf", "sglang.bench_serving", "locust FastHttp"}


def test_a_bench_of_everything() -> None:
    extent = bench.Extent(rounds=1, requests=100, rates=(50,), rate_seconds=0.3, limits=False)
    done = bench.measure(extent)
    assert set(done.short) == {"bare", "client", "soak"}
    assert all(one.requests > 0 and one.cpu_s > 0 for rounds in done.short.values() for one in rounds)
    assert all(one.chunks >= 64 for rounds in done.streamed.values() for one in rounds)
    assert set(done.rates[50]) == {"bare", "soak"}
    assert all(ratio > 0 for ratio in report.ratios(done).values())
