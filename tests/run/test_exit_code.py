import itertools

import pytest

from soak.detect.verdict import Verdict
from soak.run.exit_code import ExitCode, exit_code


@pytest.mark.parametrize(
    ("verdict", "interrupted", "lost", "failures", "code"),
    [
        (Verdict.CLEAN, False, False, [], 0),
        (Verdict.SUSPECT, False, False, [], 1),
        (Verdict.CORRUPT, False, False, [], 1),
        (Verdict.VACUOUS, False, False, [], 3),
        (Verdict.CALIBRATING, False, False, [], 3),
        (Verdict.CLEAN, False, True, [], 4),
        (Verdict.CLEAN, False, False, ["late"], 5),
        (Verdict.CORRUPT, False, False, ["late"], 1),
        (Verdict.CORRUPT, False, True, ["late"], 1),
        (Verdict.CLEAN, True, False, [], 130),
        (Verdict.CORRUPT, True, True, ["late"], 130),
    ],
)
def test_what_wins(verdict: Verdict, interrupted: bool, lost: bool, failures: list[str], code: int) -> None:
    assert exit_code(verdict, interrupted=interrupted, lost=lost, load_failures=failures) == code


def test_zero_is_for_clean_and_whole_runs_only() -> None:
    booleans = (False, True)
    for verdict in Verdict:
        for interrupted, lost, late in itertools.product(booleans, booleans, booleans):
            code = exit_code(verdict, interrupted=interrupted, lost=lost, load_failures=["x"] * late)
            whole = not (interrupted or lost or late)
            assert (code == ExitCode.CLEAN) == (verdict is Verdict.CLEAN and whole)
