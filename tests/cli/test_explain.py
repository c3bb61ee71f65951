from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from soak.cli import main
from soak.cli.explain import entries, find
from soak.detect.verdict import Verdict
from soak.drive.conjunctions import CONJUNCTIONS
from soak.runners.faults import FAULTS


def soak(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["explain", *words])
    return done.exit_code, done.stdout, done.stderr


def test_everything_that_has_a_name_can_be_explained() -> None:
    known = entries()
    names = [entry.name for entry in known]
    assert len(names) == len(set(names))
    assert {v.value for v in Verdict} <= set(names)
    assert {fault.name for fault in FAULTS} <= set(names)
    assert {each.name for each in CONJUNCTIONS} <= set(names)
    assert {"SoakVacuous", "soak_requests_total", "soak_target_info"} <= set(names)
    for entry in known:
        assert entry.words, entry.name
        assert all(words.strip() for words in entry.words), entry.name
        assert "{{" not in "".join(entry.words), "a template is nothing for a reader"
        assert find(entry.name, known) == entry


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("VACUOUS", "Exit code 3"),
        ("corrupt", "Exit code 1"),
        ("CLEAN", "Exit code 0"),
        ("stale-track-tail", "SGLang #32555"),
        ("prefix-hit", "shared-prefix (load.shapes)"),
        ("SoakDown", "docs/runbooks/SoakDown.md"),
        ("SoakCacheCorruption", "The prefix cache of fleet FLEET serves something else"),
        ("soak_requests_total", "A counter, by outcome, shape."),
        ("soak_request_latency_seconds_bucket", "A histogram, by shape."),
    ],
)
def test_what_it_says(name: str, told: str) -> None:
    code, out, _ = soak(name)
    assert code == 0
    assert told in out
    assert json.loads(soak(name, "--json")[1])["words"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("VACOUS", "VACUOUS"), ("stale-track", "stale-track-"), ("soak_request_total", "soak_requests")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    code, _, err = soak(name)
    assert code == 2
    assert f"{name}: nothing of that name; did you mean" in err
    assert near in err


def test_a_name_like_no_other() -> None:
    assert "`soak explain --list` has all names" in soak("xyzzy-0000000")[2]
    listed = soak("--list")[1].splitlines()
    assert len(listed) == len(entries())
    assert len(json.loads(soak("--list", "--json")[1])) == len(listed)
