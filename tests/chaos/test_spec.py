"""What an experiment may say, when its actions come, and what is refused before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from soak.chaos.running import experiments, refuse_commands_that_are_not_there
from soak.chaos.schedule import schedule
from soak.chaos.spec import Experiment, load
from soak.config import ConfigError
from soak.drive.deed import NAMES

GOLDEN = Path(__file__).parent / "golden" / "schedule.json"
ALLOWED = {"disruptive": True, "restart": ["true"], "kill": ["true"], "start": ["true"]}
EVERY: list[dict[str, Any]] = [
    {"do": "flush", "at": ["10s", "20s"], "times": 3},
    {"do": "pause", "mode": "abort", "at": "5s", "for": ["1s", "2s"]},
    {"do": "reload", "at": "30s"},
    {"do": "retraction", "at": ["1s", "50s"], "for": "500ms"},
    {"do": "pressure", "at": "40s"},
    {"do": "abort-storm", "at": ["1s", "50s"], "times": 2, "after": [9, 3]},
    {"do": "restart", "at": "55s"},
    {"do": "kill", "at": "56s", "for": "2s"},
    {"do": "rolling-restart", "at": "57s", "targets": ["server", "other"]},
    {"do": "latency", "at": ["1s", "50s"], "for": "5s", "delay": 20, "jitter": 30},
    {"do": "connection-loss", "at": "12s", "for": "1s", "share": 0.5},
    {"do": "half-open", "at": "13s", "for": "1s"},
    {"do": "slow-reader", "at": "14s", "for": ["1s", "9s"]},
    {"do": "truncate", "at": "15s", "for": "1s", "share": 0.25, "after_bytes": 0},
]


def values(**changes: Any) -> dict[str, Any]:
    said: dict[str, Any] = {
        "experiment": "all",
        "seed": 11,
        "targets": {
            "server": {"url": "http://127.0.0.1:1", **ALLOWED},
            "other": {"url": "http://127.0.0.1:2", **ALLOWED},
        },
        "actions": EVERY,
    }
    return said | changes


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump(values(**changes)))
    return path


def test_the_schedule_is_a_function_of_seed_and_file_alone() -> None:
    """The golden file was written by this very code: it changes with a reason and a note in the changelog."""
    made = [one.as_dict() for one in schedule(Experiment.model_validate(values()))]
    assert made == json.loads(GOLDEN.read_text())
    assert {one["name"] for one in made} == set(NAMES)
    assert [one["at_s"] for one in made] == sorted(one["at_s"] for one in made)


def test_another_seed_is_another_schedule_and_other_actions_leave_one_alone() -> None:
    def flushes(**changes: Any) -> list[int]:
        planned = schedule(Experiment.model_validate(values(**changes)))
        return [one.at_us for one in planned if one.name == "flush"]

    assert flushes() == flushes(actions=[EVERY[0], EVERY[2]])
    assert flushes() != flushes(seed=12)
    assert all(10_000_000 <= at <= 20_000_000 for at in flushes())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"actions": [{"do": "flush", "at": "1s", "target": "nobody"}]}, "no target 'nobody'"),
    ({"targets": {"server": {"url": "http://127.0.0.1:1"}}, "actions": [EVERY[0]]}, "disruptive: true"),
    (
        {"targets": {"server": {"url": "http://127.0.0.1:1", "disruptive": True}}, "actions": [EVERY[6]]},
        "argv list",
    ),
    (
        {
            "targets": {
                "server": {"url": "http://127.0.0.1:1", "restart": ["docker", "-H", "/var/run/docker.sock"]}
            }
        },
        "whole machine",
    ),
    ({"actions": [{"do": "latency", "at": "1s", "for": "1s", "target": "other"}]}, "proxy"),
    ({"actions": [{"do": "pressure", "at": "1s", "target": "other"}]}, "prompts of ours"),
    ({"actions": [{"do": "melt", "at": "1s"}]}, "no action 'melt'; there are flush"),
    ({"actions": [{"do": "flush", "at": ["9s", "1s"]}]}, "must not be the shorter"),
    ({"actions": [{"do": "flush", "at": "1s", "hard": True}]}, "no such key"),
    ({"actions": [{"do": "pause", "mode": "gently", "at": "1s", "for": "1s"}]}, "in_place"),
    ({"afterwards": ["all-is-well"]}, "no such condition"),
    ({"soaked": "third"}, "no target 'third'"),
    ({"soak": {"target": {"url": "http://x"}}}, "soaked"),
    ({"actions": []}, "actions"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        load(written(tmp_path, **changes))


def test_the_network_and_our_own_aborts_need_nobodys_leave(tmp_path: Path) -> None:
    harmless = [one for one in EVERY if one["do"] in ("abort-storm", "latency", "slow-reader", "truncate")]
    made = load(written(tmp_path, targets={"server": {"url": "http://127.0.0.1:1"}}, actions=harmless))
    assert made.proxied


def test_a_soak_that_its_own_rules_refuse_is_refused_with_its_key(tmp_path: Path) -> None:
    made = load(written(tmp_path, soak={"load": {"rate": -1}}))
    with pytest.raises(ConfigError, match=r"soak\.load\.rate"):
        made.config(60)
    far = load(
        written(tmp_path, targets={"server": {"url": "http://far.example", **ALLOWED}}, actions=EVERY[:1])
    )
    with pytest.raises(ConfigError, match="allow_load"):
        far.config(60)


def test_a_command_that_is_not_there_is_refused_beforehand(tmp_path: Path) -> None:
    missing = {"url": "http://127.0.0.1:1", "restart": ["no such program here", "-x"]}
    made = load(written(tmp_path, targets={"server": missing}, actions=[EVERY[9]]))
    with pytest.raises(ConfigError, match=r"targets\.server\.restart: there is no program"):
        refuse_commands_that_are_not_there(made)


@pytest.mark.parametrize("name", sorted(experiments()))
def test_what_ships_loads_and_disrupts_nobody_unasked(name: str) -> None:
    path = experiments()[name]
    said = yaml.safe_load(path.read_text())
    hurts = name != "slow-readers"
    if hurts:
        with pytest.raises(ConfigError, match="disruptive"):
            load(path)
    over = {"targets": {"server": {"disruptive": True, "restart": ["true"]}}} if hurts else {}
    made = load(path, over, "http://127.0.0.1:2")
    assert made.experiment == name == said["experiment"]
    assert made.targets[made.soaked].url == "http://127.0.0.1:2"
    assert made.about
    made.config(600)


def test_three_ship() -> None:
    assert set(experiments()) == {"restart", "retraction", "slow-readers"}
