"""``soak incidents``: list, show, export, and what it says when there is nothing to show."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from soak.cli import main
from soak.incident.bundle import read_bundle
from soak.run.exit_code import ExitCode
from soak.store.alarms import ack_of
from soak.store.database import Store
from tests.incident.journalled import Run

NAME = "3fa9c1d2"


async def soaked(folder: Path) -> Run:
    run = Run(folder / "journal.sqlite")
    run.session.corrupt = lambda namespace, cached: 0.7 if namespace is None else 0.0
    run.load(range(30))
    for number in (1, 2, 3):
        await run.probe(number)
    stored = run.alarm(1, 2, 3)
    run.journal.alarm(stored)
    run.journal.alarm(run.alarm(99, name="00000bad", fingerprint="bbbb"))
    run.journal.close()
    store = Store(folder / "state.sqlite")
    store.save("aaaa", 1, b"{}", probes=3, now_s=0.0, raised=[stored])
    store.close()
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("run")
    asyncio.run(soaked(found))
    return found


def incidents(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["incidents", *(str(word) for word in words)])


def test_the_list_has_one_line_an_incident_and_what_was_said_of_it(folder: Path) -> None:
    found = incidents("--state", folder / "state.sqlite")
    assert found.exit_code == ExitCode.CLEAN
    first, second = sorted(found.output.splitlines(), reverse=True)
    assert first.startswith(f"{NAME}  CORRUPT by ceiling-onset on s/64/prefill, 20")
    assert first.endswith("not acknowledged")
    assert second.startswith("00000bad")
    store = Store(folder / "state.sqlite", exclusive=False)
    store.acknowledge(NAME, ack_of(now_s=1_800_000_000.0, known="stale-track-rows"))
    store.close()
    assert "muted as the known fault stale-track-rows" in incidents("--state", folder / "state.sqlite").output


def test_as_json(folder: Path) -> None:
    rows = {row["id"]: row for row in json.loads(incidents("--out", folder, "--json").output)}
    assert rows[NAME]["verdict"] == "CORRUPT"
    assert rows[NAME]["probes"] == [1, 2, 3]
    assert rows[NAME]["held_s"] > 5
    assert "no probe of it" in rows["00000bad"]["note"]


def test_show_explains_in_words_with_a_picture(folder: Path) -> None:
    for words in (("--out", folder, "show", NAME), ("show", "3fa9", "--journal", folder / "journal.sqlite")):
        found = incidents(*words)
        assert found.exit_code == ExitCode.CLEAN, found.output
        told = found.output
        for what in ("What was asked", "How far off, nats", "What had happened", "The server"):
            assert what in told
        said = " ".join(told.split())
        assert "asked again for a prefix that prompt" in said
        assert "warm against cold max |d| 0.7, median 0.7" in said
        assert "from token 1 after the resume boundary on" in said
        assert "0.1 ┤████" in told
        assert "middle-truncated" in said, "a known fault that needs a prefix hit and nothing else"
        assert f"soak replay --incident {NAME} --journal {folder}" in said


def test_an_incident_without_a_trace_says_why(folder: Path) -> None:
    found = incidents("show", "00000bad", "--out", folder)
    assert found.exit_code == ExitCode.CLEAN
    assert "no probe of it is in the journal, so it has no trace" in " ".join(found.output.split())


def test_export_makes_a_bundle_once(folder: Path, tmp_path: Path) -> None:
    found = incidents("export", NAME, tmp_path / "b", "--out", folder)
    assert found.exit_code == ExitCode.CLEAN, found.output
    assert f"soak replay --bundle {tmp_path / 'b'}" in found.output
    trace, about = read_bundle(tmp_path / "b")
    assert about.alarm["id"] == NAME
    assert trace.case.number in (1, 2, 3)
    again = incidents("export", NAME, tmp_path / "b", "--out", folder)
    assert again.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nobody", "--out", "{}"), "there is none of that id"),
        (("--out", "{}/none"), "there is no such file"),
        (("--out", "{}", "--state", "{}/s"), "give one of them"),
        (("export", "00000bad", "{}/b", "--out", "{}"), "has no trace"),
    ],
)
def test_mistakes_are_said(folder: Path, words: tuple[str, ...], said: str) -> None:
    found = incidents(*(word.replace("{}", str(folder)) for word in words))
    assert found.exit_code == ExitCode.USAGE
    assert said in found.output
    assert not (folder / "b").exists()


def test_without_an_option_the_newest_run_is_meant(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no journal in soak-runs" in incidents().output
    for name in ("20261201T080000Z", "20261202T080000Z"):
        (tmp_path / "soak-runs" / name).mkdir(parents=True)
    (tmp_path / "soak-runs" / "20261202T080000Z" / "journal.sqlite").write_bytes(
        (folder / "journal.sqlite").read_bytes()
    )
    assert NAME in incidents().output


def test_a_run_with_a_state_file_elsewhere_is_named_by_its_folder_as_well(
    folder: Path, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"journal": {"path": str(folder / "journal.sqlite")}}))
    assert NAME in incidents("--out", tmp_path).output
    summary.rename(tmp_path / "moved")
    said = {"summary": {"journal": {"path": str(folder / "journal.sqlite")}}}
    (tmp_path / "course.json").write_text(json.dumps(said))  # all that a killed run leaves
    assert NAME in incidents("--out", tmp_path).output
    (tmp_path / "course.json").unlink()
    for unread in ("{}", '{"journal": null}', "[]", "no JSON"):
        summary.write_text(unread)
        found = incidents("--out", tmp_path)
        assert found.exit_code == ExitCode.USAGE
        assert "there is no such file" in found.stderr
