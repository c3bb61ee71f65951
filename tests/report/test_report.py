from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.detect.verdict import Verdict
from soak.report import plots
from soak.report.markup import Safe, el, join, text
from soak.report.run_folder import NotARun, read_run_folder
from soak.report.style import JS
from soak.report.timeline import stretches
from soak.report.writing import PlotsUnavailable, write_report
from tests.report.folders import finished, killed, reread, spoil, with_incident
from tests.report.reading import Page

MARK = "<script>alert('soak')</script>&\"'$\\frac{x}$"


@given(st.text())
def test_text_becomes_text(words: str) -> None:
    seen = Page(el("p", words, title=words))
    assert [tag for tag, _ in seen.elements] == ["p"]
    assert not seen.unbalanced
    plain = "".join(c if c.isprintable() or c == "\n" else " " for c in words)
    assert "".join(seen.words) == plain
    assert seen.elements[0][1]["title"] == plain


def test_only_markup_that_is_ours_is_left_as_it_is() -> None:
    assert join(Safe("<b>"), "<b>", None, ["<i>", 3]) == "<b>&lt;b&gt;&lt;i&gt;3"
    assert text("a\x1b[31m\x00b") == "a [31m b"


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about plots: each of them takes a fifth of a second."""
    monkeypatch.setattr(plots, "draw", lambda name, *_words, **_size: el("svg", name))


@pytest.fixture(scope="module")
def corrupt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_incident(tmp_path_factory.mktemp("corrupt") / "run")


@pytest.fixture(scope="module")
def shown(corrupt: Path) -> Page:
    return Page(write_report(corrupt).read_text(encoding="utf-8"))


def test_the_report_is_one_file_that_fetches_nothing(shown: Page) -> None:
    assert shown.unbalanced == []
    assert shown.scripts == [JS]
    assert shown.count("link") == shown.count("img") == shown.count("iframe") == 0
    for tag, attributes in shown.elements:
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    policy = next(a["content"] for t, a in shown.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_every_plot_has_words_for_who_does_not_see_it(shown: Page) -> None:
    drawn = [attributes for tag, attributes in shown.elements if tag == "svg"]
    assert len(drawn) == 6  # offsets, evidence, amnesia, one incident, latency, load
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for plot in drawn:
        assert plot["role"] == "img"
        assert set(plot["aria-labelledby"].split()) <= set(ids)
        assert "width" not in plot  # it takes the page's
    assert not any("#0101" in str(attributes) for _, attributes in shown.elements), "a colour without a theme"


def test_the_report_answers_what_people_ask(shown: Page) -> None:
    for words in (
        "CORRUPT",
        "the prefix cache serves something else than a cold recompute gives",
        "What was covered, and what was not?",
        "1 of 2 conjunctions were reached; not retraction",
        "decode: at the first token probes are off by",
        "soak replay --incident 3fa9c1d2",
        "What had happened, in words",
        "76 of 80 prompts were sent (95%)",
        "0.5.18",
        "load.rate",
    ):
        assert words in shown.text, words


@pytest.mark.usefixtures("unplotted")
def test_a_run_that_was_killed_has_a_report(tmp_path: Path) -> None:
    said = Page(write_report(killed(tmp_path / "run")).read_text())
    assert "left no summary: it was killed, or it still goes on" in said.text
    assert said.count("svg") == 5
    assert "exit code" not in said.text


@pytest.mark.usefixtures("unplotted")
def test_incidents_after_the_last_save_are_in_the_report(tmp_path: Path) -> None:
    folder = with_incident(tmp_path / "run")
    (folder / "summary.json").unlink()
    kept = reread(folder / "course.json")
    kept["summary"]["incidents"], kept["began_s"] = [], 0.0
    (folder / "course.json").write_text(json.dumps(kept))
    assert "soak replay --incident 3fa9c1d2" in Page(write_report(folder).read_text()).text


def test_nothing_that_others_say_becomes_markup(tmp_path: Path) -> None:
    folder = with_incident(tmp_path / "run", words=f"x{MARK}")
    said = reread(folder / "summary.json")
    kept = reread(folder / "course.json")
    for name in ("fingerprint", "reasons", "coverage", "gaps", "replay_command", "target", "spec_digest"):
        said[name] = spoil(said[name], MARK)
    said["coverage"] = [{**entry, "state": "confirmed"} for entry in said["coverage"]]
    said["requests"] = {f"{name}{MARK}": seen for name, seen in said["requests"].items()}
    said["divergence"] = {f"{name}{MARK}": seen for name, seen in said["divergence"].items()}
    said["detector"]["alarms"] = spoil(said["detector"]["alarms"], MARK)
    said["detector"]["statement"] += MARK
    said["detector"]["log_evidence"] = {f"s{MARK}": 1.0}
    said["gaps"] = [{"began_at": MARK, "ended_at": MARK, "seconds": 1.0, "restarted": None}]
    said["load"]["undelivered"] = {MARK: 3}
    kept["config"] = {f"load{MARK}": spoil({"rate": "1", "note": ["a"]}, MARK)}
    kept["course"]["kinds"] = {f"{name}{MARK}": kind for name, kind in kept["course"]["kinds"].items()}
    for _, held in kept["course"]["bins"]:
        held["verdict"] = MARK
    (folder / "summary.json").write_text(json.dumps(said))
    (folder / "course.json").write_text(json.dumps(kept))
    shown = Page(write_report(folder).read_text(encoding="utf-8"))
    assert shown.scripts == [JS]
    assert shown.unbalanced == []
    assert shown.text.count("<script>alert('soak')</script>") > 40


@pytest.mark.usefixtures("unplotted")
def test_no_secret_reaches_the_report(tmp_path: Path) -> None:
    def with_key(said: dict[str, Any]) -> None:
        said["target"] = "http://ada:hunter2marker@127.0.0.1:30000/?key=hunter2marker"
        said["fingerprint"]["api_key"] = "hunter2marker"

    folder = finished(tmp_path / "run", change=with_key)
    kept = reread(folder / "course.json")
    kept["config"] = {"target": {"api_key": "hunter2marker", "token": "hunter2marker", "api_key_env": "NAME"}}
    (folder / "course.json").write_text(json.dumps(kept))
    whole = write_report(folder).read_text()
    assert "hunter2marker" not in whole
    assert "left out" in whole


def test_a_run_of_an_earlier_soak_has_a_report_without_plots(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", Verdict.VACUOUS)
    (folder / "course.json").unlink()
    said = Page(write_report(folder).read_text())
    assert said.count("svg") == 0
    assert "What happened over time cannot be shown: there is no course.json" in said.text


@pytest.mark.parametrize("cut", [0, 1, 100, 5000])
@pytest.mark.usefixtures("unplotted")
def test_a_damaged_course_costs_only_the_plots(tmp_path: Path, cut: int) -> None:
    folder = finished(tmp_path / "run")
    course = folder / "course.json"
    course.write_bytes(course.read_bytes()[:cut])
    assert "cannot be shown" in Page(write_report(folder).read_text()).text


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: folder.rmdir(), "no such folder"),
        (lambda folder: None, "neither summary.json nor course.json"),
        (lambda folder: (folder / "summary.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "summary.json").write_text("[]"), "no JSON object"),
        (lambda folder: (folder / "summary.json").write_text('{"schema_version": 99}'), "schema 99"),
        (lambda folder: (folder / "summary.json").write_text('{"schema_version": 1}'), "lacks verdict"),
    ],
)
def test_what_is_no_run_is_refused_in_words(tmp_path: Path, make: Any, told: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    make(folder)
    with pytest.raises(NotARun, match=told):
        write_report(folder)


def test_a_summary_of_odd_values_is_refused_in_words(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", change=lambda said: said.update(load=[]))
    with pytest.raises(NotARun, match="not as a run writes it"):
        write_report(folder)
    assert not list(folder.glob("*.part"))


@pytest.mark.usefixtures("unplotted")
def test_a_journal_that_is_none_costs_only_the_incidents(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", Verdict.CORRUPT)
    (folder / "journal.sqlite").write_text("no journal")
    said = Page(write_report(folder).read_text()).text
    assert "The journal cannot be read" in said
    assert "Did the server get the load that was asked for?" in said


@pytest.mark.usefixtures("unplotted")
def test_a_journal_without_the_incident(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", Verdict.CORRUPT)
    sqlite3.connect(folder / "journal.sqlite").close()
    assert "cannot be read" in Page(write_report(folder).read_text()).text


def test_without_matplotlib_one_line_says_how_to_get_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PlotsUnavailable, match=r"pip install 'soak\[report\]'"):
        write_report(finished(tmp_path / "run"))


def test_a_user_without_a_home_hears_nothing_of_it() -> None:
    """As in a container: matplotlib speaks of it while it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", "from soak.report.drawing import need_plots; need_plots()"],
        env={"HOME": "/dev/null", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_the_same_run_is_drawn_the_same(tmp_path: Path) -> None:
    course = read_run_folder(finished(tmp_path / "run")).course
    assert course is not None
    times, width_s = stretches(course, 20)
    assert plots.load(times, width_s) == plots.load(times, width_s)


@pytest.mark.usefixtures("unplotted")
def test_a_run_of_many_processes_has_one_report(tmp_path: Path) -> None:
    whole = finished(tmp_path / "run")
    (whole / "course.json").unlink()
    for shard in ("shard-0-of-2", "shard-1-of-2"):
        part = with_incident(whole / shard, name=f"{shard[6]}fa9c1d2")
        kept = reread(part / "course.json")
        kept["began_s"] = 0.0 if shard.startswith("shard-0") else 20.0
        (part / "course.json").write_text(json.dumps(kept))
    run = read_run_folder(whole)
    assert run.course is not None
    assert run.began_s == 0.0
    assert sum(held.values.get("asked", 0) for held in run.course.bins.values()) == 2 * 78
    said = Page(write_report(whole).read_text()).text
    for words in ("2 incidents.", "soak replay --incident 0fa9c1d2", "soak replay --incident 1fa9c1d2"):
        assert words in said, words
