"""The fix of the decode replay's track buffer, in its many forms, told from those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.runners import decode_tail
from soak.runners.answer import Answer
from tests.runners.trees import decode, site


def judged(root: Path, taking: str, handing: str = "rows", outside: str = "") -> Answer:
    return decode_tail.check(site(root, decode(taking, handing, outside)))


WHOLE = {
    "assertion and prefix": (
        """
        assert len(mamba_track_indices) >= n
        rows = self.buffer[:n]
        rows.copy_(self.translate(mamba_track_indices[:n]))
        """,
        "rows",
    ),
    "raised, and other spellings": (
        """
        if n > mamba_track_indices.shape[0]:
            raise ValueError("too few")
        self.track_rows[0:n] = mamba_track_indices.narrow(0, 0, n)
        """,
        "self.track_rows.narrow(0, 0, n)",
    ),
    "a whole refresh, and a prefix of it": (
        """
        assert n <= mamba_track_indices.size(0), "too few"
        whole = self.tracked
        whole[:len(mamba_track_indices)].copy_(mamba_track_indices)
        rows = whole[:n]
        """,
        "rows",
    ),
    "exactly as many": (
        """
        assert len(mamba_track_indices) == n
        self.tracked[:n].copy_(mamba_track_indices)
        """,
        "self.tracked[:n]",
    ),
}


@pytest.mark.parametrize("form", list(WHOLE))
def test_a_whole_fix_in_any_form(tmp_path: Path, form: str) -> None:
    taking, handing = WHOLE[form]
    taking = taking.replace("self.buffer", "self.track_buffer")
    answer = judged(tmp_path, taking, handing)
    assert (answer.state, answer.fix) == ("fixed", "complete"), answer


def test_a_fix_in_a_method_that_is_called(tmp_path: Path) -> None:
    method = """
        def _fresh(self, count, given):
            assert len(given) >= count
            self.track_rows[:count].copy_(given[:count])
            return self.track_rows[:count]
    """
    answer = judged(tmp_path, "rows = self._fresh(n, mamba_track_indices)", "rows", method)
    assert answer.state == "fixed", answer


OLD = """
    rows = self.track_rows
    rows[: len(mamba_track_indices)].copy_(mamba_track_indices)
"""


def test_the_fault(tmp_path: Path) -> None:
    answer = judged(tmp_path, OLD)
    assert (answer.state, answer.fix) == ("vulnerable", "absent"), answer
    assert answer.where[0].startswith(f"{decode_tail.MODULE}:")


@pytest.mark.parametrize(
    "dead",
    ["if False:\n    rows = self.track_rows[:n]\n", "while None:\n    rows = self.track_rows[:n]\n"],
)
def test_a_dead_fix_is_none(tmp_path: Path, dead: str) -> None:
    answer = judged(tmp_path, "\n".join(line[4:] for line in OLD.splitlines()) + "\n" + dead)
    assert (answer.state, answer.fix) == ("vulnerable", "dead"), answer


def test_half_fixes(tmp_path: Path) -> None:
    without_assertion = judged(tmp_path, "rows = self.track_rows[:n]\nrows.copy_(mamba_track_indices[:n])")
    assert (without_assertion.state, without_assertion.fix) == ("vulnerable", "partial"), without_assertion
    assertion_alone = judged(
        tmp_path,
        "assert len(mamba_track_indices) >= n\n"
        "rows = self.track_rows\nrows[:n].copy_(mamba_track_indices[:n])",
    )
    assert (assertion_alone.state, assertion_alone.fix) == ("vulnerable", "partial"), assertion_alone
    wrong_way = judged(
        tmp_path,
        "assert len(mamba_track_indices) <= n\n"
        "rows = self.track_rows[:n]\nrows.copy_(mamba_track_indices[:n])",
    )
    assert (wrong_way.state, wrong_way.fix) == ("vulnerable", "partial"), wrong_way


def test_one_way_of_two_hands_out_the_whole_buffer(tmp_path: Path) -> None:
    answer = judged(
        tmp_path,
        "assert len(mamba_track_indices) >= n\nself.track_rows[:n].copy_(mamba_track_indices[:n])\n"
        "rows = self.track_rows[:n] if fast else self.track_rows",
    )
    assert answer.state == "vulnerable", answer


@pytest.mark.parametrize(
    "handing", ["self.track_rows[1:n]", "self.track_rows[: n + 1]", "self.track_rows[-n:]"]
)
def test_other_rows_are_unknown(tmp_path: Path, handing: str) -> None:
    assert judged(tmp_path, "self.track_rows[:n].copy_(mamba_track_indices[:n])", handing).state == "unknown"


def test_a_prefix_that_nobody_refreshed_is_unknown(tmp_path: Path) -> None:
    answer = judged(tmp_path, "assert len(mamba_track_indices) >= n", "self.track_rows[:n]")
    assert answer.state == "unknown"


def test_a_reader_that_no_longer_takes_the_end_is_unknown(tmp_path: Path) -> None:
    files = {
        name: source.replace("[-facts.count :]", "[: facts.count]") for name, source in decode(OLD).items()
    }
    assert decode_tail.check(site(tmp_path, files)).state == "unknown"


def test_moved_and_absent(tmp_path: Path) -> None:
    moved = decode_tail.check(site(tmp_path / "a", {"srt/x.py": "mamba_track_indices = 1\n"}))
    assert (moved.state, moved.where) == ("unknown", (decode_tail.MODULE,))
    assert decode_tail.check(site(tmp_path / "b", {"srt/x.py": ""})).state == "not applicable"
