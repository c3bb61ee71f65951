"""``soak chaos`` as a person types it: what would be done, what is refused, what is in force."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from soak.chaos.ledger import Ledger, Undo, ledgers
from soak.cli import main


def typed(*words: str) -> Result:
    return CliRunner().invoke(main, ["chaos", *words])


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOAK_CHAOS_LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


def dead(folder: Path, *undo: Undo) -> None:
    """What a process that died in the middle has left."""
    left = Ledger(folder, "mine")
    for number, how in enumerate(undo):
        left.begin(f"action-{number}", "server", how)
    os.close(left._lock)


@pytest.mark.parametrize("command", ["run", "list", "stop"])
def test_help_has_an_example(command: str) -> None:
    assert f"soak chaos {command}" in typed(command, "--help").output.replace("\n", " ")


def test_the_plan_is_shown_and_nothing_done() -> None:
    done = typed("run", "slow-readers", "--seed", "3", "--plan")
    assert done.exit_code == 0
    assert [line.split()[2] for line in done.output.splitlines()] == [
        "slow-reader", "latency", "truncate", "connection-loss", "half-open",
    ]  # fmt: skip
    again = json.loads(typed("run", "slow-readers", "--seed", "3", "--plan", "--json").output)
    assert again == json.loads(typed("run", "slow-readers", "--set", "seed=3", "--plan", "--json").output)
    assert again != json.loads(typed("run", "slow-readers", "--plan", "--json").output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nothing-such"], "none that ships; those are restart, retraction, slow-readers"),
        (["run", "retraction"], "targets.server.disruptive: true"),
        (["run", "restart", "--set", "targets.server.disruptive=true"], "wants the command"),
        (["run", "slow-readers", "--set", "soak.load.rate=-1"], "soak.load.rate"),
        (["run", "slow-readers", "--set", "actions=[]"], "actions"),
    ],
)
def test_what_is_refused_says_what_to_do(words: list[str], said: str) -> None:
    done = typed(*words)
    assert done.exit_code == 2
    assert said in done.output


def test_nothing_in_force() -> None:
    assert "nothing is in force" in typed("list").output
    done = typed("stop")
    assert (done.exit_code, done.output.strip()) == (0, "nothing is in force")
    assert set(json.loads(typed("list", "--json").output)["experiments"]) == {
        "restart", "retraction", "slow-readers",
    }  # fmt: skip


def test_what_a_dead_one_has_left_is_listed_and_undone(ledger: Path) -> None:
    dead(ledger, Undo("nothing"), Undo("nothing"))
    (kept,) = json.loads(typed("list", "--json").output)["ledgers"]
    assert (kept["alive"], [entry["what"] for entry in kept["in_force"]]) == (False, ["action-0", "action-1"])
    done = typed("stop")
    assert done.exit_code == 0
    assert done.output.count("undone: action") == 2
    assert ledgers(ledger) == []


def test_what_cannot_be_undone_exits_6(ledger: Path, unused_url: str) -> None:
    dead(ledger, Undo("start", unused_url, argv=("false",), within_s=0.1), Undo("nothing"))
    done = typed("stop")
    assert done.exit_code == 6
    assert "STILL IN FORCE: action-0 on server (mine): false ended with 1" in done.output
    (kept,) = json.loads(typed("list", "--json").output)["ledgers"]
    assert [entry["what"] for entry in kept["in_force"]] == ["action-0"]


@pytest.fixture
def unused_url() -> str:
    """Nobody listens there: port 9 is discard, which nothing serves any more."""
    return "http://127.0.0.1:9"


def test_a_damaged_ledger_is_left_alone_and_said(ledger: Path) -> None:
    ledger.mkdir()
    (ledger / "x.jsonl").write_text("{}\nnonsense\n{}\n")
    for command in ("list", "stop"):
        done = typed(command)
        assert done.exit_code == 6
        assert "line 2 is damaged" in done.output
    assert (ledger / "x.jsonl").exists()
