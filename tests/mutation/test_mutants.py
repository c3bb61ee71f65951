"""The mutator itself: it changes what it says, one thing at a time, and a test run notices a mutant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import mutants
from tests.mutation.trial import ROOT, files_in_rounds


def became(source: str) -> set[str]:
    return {mutant.became for mutant in mutants(source)}


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b", {"a <= b"}),
        ("x = a == b", {"a != b"}),
        ("x = a < b < c", {"a <= b < c", "a < b <= c"}),
        ("x = a - b", {"a + b"}),
        ("x = a and b", {"a or b"}),
        ("x = not a", {"not not a"}),
        ("x = -a", {"+a"}),
        ("x = 3", {"4"}),
        ("x = 0.5", {"1.0"}),
        ("x = True", {"False"}),
        ("x += y", {"x -= y"}),
        ("def f():\n    return x", {"return None"}),
        ("def f():\n    return None", set()),
        ("if a:\n    f()", {"if not a:\n    f()"}),
    ],
)
def test_one_change_of_each_sort(source: str, changed: set[str]) -> None:
    assert became(source) == changed


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring with 3."""',
        "def f(a: Literal[3]) -> Literal[4]:\n    pass",
        "raise ValueError(3)",
        "x = f'{3}'",
        "@decorated(3)\nclass A:\n    pass",
    ],
)
def test_what_no_test_could_tell_is_left_alone(source: str) -> None:
    assert became(source) == set()


def test_the_rest_of_the_module_stays() -> None:
    source = "x = 1\ny = a < b"
    assert [mutant.text for mutant in mutants(source)] == ["x = 2\ny = a < b", "x = 1\ny = a <= b"]
    assert [mutant.line for mutant in mutants(source)] == [1, 2]


def run(*words: str) -> str:
    # in a process of its own: where the module is loaded already, nothing would import the mutant
    command = [
        sys.executable,
        "-m",
        "tests.mutation",
        "soak/detect/medians.py",
        "--sample",
        "1",
        "--seed",
        "2",
    ]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip()


def test_a_mutant_is_run_and_noticed_and_not_again(tmp_path: Path) -> None:
    module = ROOT / "soak" / "detect" / "medians.py"
    before, records = module.read_bytes(), tmp_path / "records.jsonl"
    said = run("--records", str(records))
    assert "1 of " in said
    assert said.endswith("1 killed"), said
    assert module.read_bytes() == before
    (line,) = records.read_text().splitlines()
    assert json.loads(line)["verdict"] == "killed"
    # what is written down is believed, whatever it is: nothing is run for it
    records.write_text(json.dumps({**json.loads(line), "verdict": "survived"}) + "\n")
    said = run("--records", str(records))
    assert "survived: soak/detect/medians.py:" in said
    assert said.endswith("1 survived"), said


@pytest.mark.parametrize(
    ("module", "first", "among", "not_among"),
    [
        ("detect/medians.py", "test_medians.py", "test_detector.py", "test_binomial.py"),
        ("detect/account.py", "", "test_detector.py", "test_binomial.py"),
        ("oracle/victims.py", "test_victims.py", "test_prober.py", "test_coarsened.py"),
        ("oracle/probe.py", "", "test_prober.py", "test_divergence.py"),
    ],
)
def test_every_test_that_loads_the_module_has_its_turn_its_own_first(
    module: str, first: str, among: str, not_among: str
) -> None:
    files = [Path(file).name for some in files_in_rounds(ROOT / "soak" / module) for file in some]
    assert len(files) == len(set(files))
    assert among in files
    assert not_among not in files
    assert not first or files[0] == first
