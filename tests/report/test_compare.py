from __future__ import annotations

import json
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from soak.cli import main
from soak.detect.verdict import Verdict
from soak.report.difference import compare
from soak.report.run_folder import read_run_folder
from tests.report.folders import finished, with_incident


def soak(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("runs") / "before", probes=120)


def test_a_run_beside_itself(before: Path) -> None:
    code, out, _ = soak("compare", str(before), str(before))
    assert code == 0
    assert "Verdict: CLEAN -> CLEAN: the same." in out
    assert "The server is the same" in out
    assert "The plan is the same." in out
    assert "No figure differs by more than chance" in out
    assert "Both reached the same conjunctions." in out


def test_an_upgrade_that_made_it_worse(before: Path, tmp_path: Path) -> None:
    def upgraded(said: dict[str, Any]) -> None:
        said["fingerprint"]["version"] = "0.5.19"
        said["coverage"][1]["state"] = "confirmed"

    after = finished(tmp_path / "after", Verdict.CORRUPT, upgraded, probes=120, off=0.4, latency_s=0.9)
    code, out, _ = soak("compare", str(before), str(after))
    assert code == 1
    assert "CLEAN -> CORRUPT: worse" in out
    assert "  version: 0.5.18 -> 0.5.19" in out
    assert "Reached in B alone: retraction" in out
    found = compare(read_run_folder(before), read_run_folder(after))
    differ = {figure.what: figure.worse for figure in found.figures if figure.differs}
    assert differ["divergence of probes, resumes from decode"]
    assert differ["latency, median"]
    assert not any(name.startswith("noise floor") for name in differ)
    back = json.loads(soak("compare", str(after), str(before), "--json")[1])
    better = [figure for figure in back["figures"] if figure["differs"]]
    assert better
    assert not any(figure["worse"] for figure in better)
    assert back["worse_verdict"] is False


def test_nothing_can_be_said_of_a_run_that_says_nothing(before: Path, tmp_path: Path) -> None:
    empty = finished(tmp_path / "empty", Verdict.VACUOUS, probes=120)
    assert soak("compare", str(before), str(empty))[0] == 3


def test_the_words_of_two_verdicts_agree_with_the_exit_code(tmp_path: Path) -> None:
    runs = {verdict: finished(tmp_path / verdict.value, verdict, probes=1) for verdict in Verdict}
    silent = "one that says nothing about the cache cannot be compared with another."
    for a, b in product(runs, runs):
        code, out, _ = soak("compare", str(runs[a]), str(runs[b]))
        words = out.partition(f"Verdict: {a.value} -> {b.value}: ")[2].partition("\n")[0]
        assert code == {"worse.": 1, silent: 3, "the same.": 0, "better.": 0}[words], (a, b)
        assert b in {Verdict.SUSPECT, Verdict.CORRUPT} or words != "worse."


def test_what_was_found_is_named_with_the_command_that_explains_it(before: Path, tmp_path: Path) -> None:
    after = with_incident(tmp_path / "after it", "words")
    said = json.loads((after / "summary.json").read_text())
    said["detector"]["alarms"] = [
        {"verdict": "CORRUPT" if n else "SUSPECT", "channel": "ceiling-onset", "stream": f"s{n}"}
        for n in range(11)
    ]
    said["fingerprint"]["simulator_faults"] = "stale-track-tail"
    (after / "summary.json").write_text(json.dumps(said))
    out = soak("compare", str(before), str(after))[1]
    assert "\n  B: CORRUPT by ceiling-onset on s1\n" in out
    assert "\n  B: and 3 more\n" in out
    assert "  A: " not in out
    (command,) = [line.partition(": ")[2] for line in out.splitlines() if line.startswith("  B in words: ")]
    code, explained, _ = soak(*shlex.split(command)[1:])
    assert code == 0
    assert "What was asked" in explained
    assert json.loads(soak("compare", str(before), str(after), "--json")[1])["alarms"][0] == []


def test_runs_without_a_course_have_their_counts_compared(before: Path, tmp_path: Path) -> None:
    old = finished(tmp_path / "old", probes=120)
    (old / "course.json").unlink()
    code, out, _ = soak("compare", str(before), str(old))
    assert code == 0
    assert "no test of it can be made" in " ".join(out.split()), "wherever its lines are broken"
    assert "prompts sent" in out


def test_another_plan_is_said(before: Path, tmp_path: Path) -> None:
    other = finished(tmp_path / "other", change=lambda said: said.update(seed=8), probes=120)
    course = json.loads((other / "course.json").read_text())
    course["config"]["load"]["rate"] = 2.0
    (other / "course.json").write_text(json.dumps(course))
    out = soak("compare", str(before), str(other))[1]
    assert "The plan is another" in out
    assert "  load.rate: 1.0 -> 2.0" in out


@pytest.mark.parametrize("words", [["nowhere", "nowhere"], ["RUN", "nowhere"]])
def test_what_is_no_run_is_refused(before: Path, words: list[str]) -> None:
    code, _, err = soak("compare", *(str(before) if word == "RUN" else word for word in words))
    assert code == 2
    assert "nowhere: no such folder" in err


def test_a_summary_of_odd_values_is_refused(before: Path, tmp_path: Path) -> None:
    odd = finished(tmp_path / "odd", change=lambda said: said.update(probes=3))
    code, _, err = soak("compare", str(before), str(odd))
    assert code == 2
    assert "was it edited?" in err
