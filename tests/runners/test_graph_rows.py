"""The fix of the prefill graph's track rows, in its many forms, told from those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.runners import graph_rows
from soak.runners.answer import Answer
from tests.runners.trees import rows, site


def judged(root: Path, clearing: str, outside: str = "") -> Answer:
    return graph_rows.check(site(root, rows(clearing, outside)))


WHOLE = {
    "loop over names": """
        for name in ("mamba_track_mask", "mamba_track_indices"):
            if self.registry.has_slot(name):
                self.registry.get_slot(name).buffer[n:top].zero_()
    """,
    "two statements": """
        self.registry.get_slot("mamba_track_mask").buffer[n:top].zero_()
        self.registry.get_slot("mamba_track_indices").buffer[n:top].zero_()
    """,
    "renamed temporaries": """
        slots = self.registry
        first, last = n, top
        if slots.has_slot("mamba_track_mask"):
            flags = slots.get_slot("mamba_track_mask").buffer
            flags[first:last] = False
        if slots.has_slot("mamba_track_indices"):
            targets = slots.get_slot("mamba_track_indices").buffer
            targets[first:last].fill_(0)
    """,
    "names kept in the module": """
        for which in TRACKED:
            slot = self.registry.get_slot(which) if self.registry.has_slot(which) else None
            if slot is not None:
                slot.buffer[n:].zero_()
    """,
    "a comprehension": """
        there = [w for w in TRACKED if self.registry.has_slot(w)]
        for buffer in (self.registry.get_slot("mamba_track_mask").buffer,):
            buffer[n:top].mul_(0)
        for w in [w for w in ("mamba_track_indices",) if self.registry.has_slot(w)]:
            self.registry.get_slot(w).buffer.narrow(0, n, top - n).zero_()
    """,
}


@pytest.mark.parametrize("form", list(WHOLE))
def test_a_whole_fix_in_any_form(tmp_path: Path, form: str) -> None:
    answer = judged(tmp_path, WHOLE[form])
    assert (answer.state, answer.fix) == ("fixed", "complete"), answer


def test_a_fix_in_a_method_that_the_refresh_calls(tmp_path: Path) -> None:
    method = """
        def _forget(self, low, high):
            for name in TRACKED:
                if not self.registry.has_slot(name):
                    continue
                self.registry.get_slot(name).buffer[low:high].zero_()
    """
    assert judged(tmp_path, "self._forget(n, top)", method).state == "fixed"
    uncalled = judged(tmp_path, "pass", method)
    assert (uncalled.state, uncalled.fix) == ("vulnerable", "dead"), uncalled


DEAD = {
    "if False": """
        if False:
            for name in TRACKED:
                self.registry.get_slot(name).buffer[n:top].zero_()
    """,
    "an empty loop": """
        for name in ():
            self.registry.get_slot("mamba_track_mask").buffer[n:top].zero_()
            self.registry.get_slot("mamba_track_indices").buffer[n:top].zero_()
    """,
    "after a return": """
        return None
        for name in TRACKED:
            self.registry.get_slot(name).buffer[n:top].zero_()
    """,
    "a while that never runs": """
        while 0:
            self.registry.get_slot("mamba_track_mask").buffer[n:top].zero_()
            self.registry.get_slot("mamba_track_indices").buffer[n:top].zero_()
    """,
}


@pytest.mark.parametrize("form", list(DEAD))
def test_a_dead_fix_is_none(tmp_path: Path, form: str) -> None:
    answer = judged(tmp_path, DEAD[form])
    assert (answer.state, answer.fix) == ("vulnerable", "dead"), answer


def test_a_commented_out_fix_and_a_docstring_are_none(tmp_path: Path) -> None:
    answer = judged(
        tmp_path,
        """
        # for name in TRACKED: self.registry.get_slot(name).buffer[n:top].zero_()
        "self.registry.get_slot('mamba_track_mask').buffer[n:top].zero_()"
        """,
    )
    assert (answer.state, answer.fix) == ("vulnerable", "absent"), answer


@pytest.mark.parametrize("name", ["mamba_track_mask", "mamba_track_indices"])
def test_half_a_fix(tmp_path: Path, name: str) -> None:
    answer = judged(tmp_path, f'self.registry.get_slot("{name}").buffer[n:top].zero_()')
    assert (answer.state, answer.fix) == ("vulnerable", "partial"), answer
    assert name in answer.because


@pytest.mark.parametrize(
    "clearing",
    [
        'for name in TRACKED:\n    self.registry.get_slot(name).buffer[n + 1:top].zero_()',
        'for name in TRACKED:\n    self.registry.get_slot(name).buffer[n:self.some].zero_()',
        'if settings.careful:\n    for name in TRACKED:\n'
        "        self.registry.get_slot(name).buffer[n:top].zero_()",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_unknown(tmp_path: Path, clearing: str) -> None:
    answer = judged(tmp_path, clearing)
    assert answer.state == "unknown", answer
    assert graph_rows.MODULE in answer.where[0]


def test_writing_other_values_is_no_fix(tmp_path: Path) -> None:
    answer = judged(tmp_path, "for name in TRACKED:\n    self.registry.get_slot(name).buffer[n:top].fill_(1)")
    assert (answer.state, answer.fix) == ("vulnerable", "absent"), answer


def test_a_refresh_that_has_moved_is_unknown_and_says_where_it_looked(tmp_path: Path) -> None:
    elsewhere = {"srt/model_executor/other.py": "mamba_track_mask = None\n"}
    answer = graph_rows.check(site(tmp_path, elsewhere))
    assert (answer.state, answer.where) == ("unknown", ("srt/model_executor",))
    rewritten = {graph_rows.MODULE: "def refresh(): return mamba_track_mask\n"}
    assert graph_rows.check(site(tmp_path, rewritten)).state == "unknown"


def test_a_renamed_file_is_found(tmp_path: Path) -> None:
    (source,) = rows(WHOLE["two statements"]).values()
    answer = graph_rows.check(site(tmp_path, {"srt/model_executor/prefill_full_graph_runner.py": source}))
    assert answer.state == "fixed"


def test_a_release_without_states_is_not_concerned(tmp_path: Path) -> None:
    assert graph_rows.check(site(tmp_path, {"srt/other.py": ""})).state == "not applicable"
    older = {graph_rows.MODULE: "class Runner:\n    def replay(self):\n        return 1\n"}
    assert graph_rows.check(site(tmp_path, older)).state == "not applicable"
