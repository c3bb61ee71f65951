"""`soak bench parse`, `judge` and `flat`, small: what they measure is what they say, and when they fail."""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from soak.bench.flat import measuring as flat
from soak.bench.flat import parts
from soak.bench.flat.parts import PARTS, Part
from soak.bench.flat.report import grown
from soak.bench.judge import measuring as judge
from soak.bench.parse import measuring as parse
from soak.bench.parse.answers import scored
from soak.bench.parse.report import below
from soak.cli.bench import command
from soak.sglang.wire import decode_generate


@pytest.fixture(autouse=True)
def little_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_KNOWN", 30)
    monkeypatch.setattr(parse, "_OFTEN", 1)
    monkeypatch.setattr(flat, "TURNS", 4)


@pytest.mark.parametrize("top", [0, 2])
def test_the_answers_of_the_bench_are_those_of_a_server_in_good_order(top: int) -> None:
    made = scored(300, top, seed=1)
    (answer,) = decode_generate(made.body, made.request)
    assert answer.ok, answer.detail
    np.testing.assert_array_equal(answer.input_token_ids, made.request.prompts[0])
    assert scored(300, top, seed=2).body != made.body


def test_parse_says_what_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "CASES", ((200, 0), (100, 2)))
    ran = CliRunner().invoke(command, ["parse", "--turns", "1", "--at-least", "1e9"])
    assert ran.exit_code == 1
    assert "| 100 and top 2 |" in ran.output
    assert ran.output.count("1e+09 is wanted") == 2
    ran = CliRunner().invoke(command, ["parse", "--turns", "1", "--json"])
    assert [each["tokens"] for each in json.loads(ran.stdout)] == [200, 100]
    seen = parse.Speed(*([1] * 10))
    assert below([replace(seen, ratio=1.3)], 1.2) == []


async def test_a_pause_of_the_loop_is_seen() -> None:
    slept = await parse.longest_pause(lambda: time.sleep(0.02))
    assert slept >= 0.0
    assert await parse.longest_pause(lambda: sum(range(40_000_000))) > 0.05, "one call that holds the GIL"


def test_judge_compares_both_ways_and_judges(tmp_path: Path) -> None:
    seen = judge.measure(probes=60, tokens=20, rounds=1)
    assert (seen.probes, seen.tokens) == (60, 20)
    assert seen.total_s == seen.together_s + seen.detect_s > 0
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- soak bench judge: begin -->\nold\n<!-- soak bench judge: end -->\nafter\n")
    ran = CliRunner().invoke(command, ["judge", "--probes", "50", "--at-most", "0", "--page", str(page)])
    assert ran.exit_code == 1
    assert "| 50 x 256 |" in page.read_text()
    assert "old" not in page.read_text()


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_works_and_is_measured(part: str) -> None:
    seen = flat.measure(part, few=10, many=30)
    assert (seen.few, seen.many, seen.part) == (10, 30, part)
    assert seen.few_us > 0 and seen.many_us > 0
    assert seen.many_bytes >= 1 << 20


class Growing(Part):
    """Takes time and memory for all that it has seen."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def prepare(self, count: int) -> None:
        self.seen += [bytes(20_000) for _ in range(count)]

    def work(self) -> None:
        for _ in range(20):
            sum(map(len, self.seen))


def growing() -> flat.Flatness:
    PARTS["growing"] = Growing
    return flat.measure("growing", few=100, many=5000)


def test_what_grows_is_not_flat() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:  # its memory is the part's alone
        seen = process.submit(growing).result()
    assert not seen.flat
    assert seen.time_ratio > 2 and seen.memory_ratio > 1.1
    (words,) = grown([seen])
    assert words.startswith("growing: ")
    same: dict[str, Any] = {"time_ratio": 1.2, "many_bytes": seen.few_bytes}
    assert grown([replace(seen, **same)]) == []


def test_flat_measures_each_part_in_a_process_and_refuses_what_it_cannot() -> None:
    ran = CliRunner().invoke(command, ["flat", "--part", "plan", "--few", "10", "--many", "20", "--json"])
    (seen,) = json.loads(ran.stdout)
    assert (seen["part"], seen["many"]) == ("plan", 20)
    ran = CliRunner().invoke(command, ["flat", "--part", "nothing"])
    assert ran.exit_code == 1
    assert "no such part: nothing; there are plan, journal" in ran.output
    assert "is not fewer" in CliRunner().invoke(command, ["flat", "--few", "20", "--many", "20"]).output
