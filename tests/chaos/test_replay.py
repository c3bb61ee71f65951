"""Actions in a trace: kept in a bundle, done again in their place, named with the incident, dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soak.chaos.leash import leashed
from soak.chaos.ledger import ledgers, read_ledger
from soak.cli.incidents import explained
from soak.config.target import Target
from soak.incident.bundle import BundleError, read_bundle, write_bundle
from soak.incident.candidates import candidates
from soak.incident.history import history_of
from soak.incident.journal_reader import JournalReader
from soak.incident.order import Speed
from soak.incident.player import Manner
from soak.incident.replay import Repeat, replay_once
from soak.incident.salt import salt
from soak.incident.shrink import shrink
from soak.incident.trace import Acted, Trace
from soak.runners.faults import settings_for
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.incident.traces import Script, about, random_ids

from .running import LIGHT, conduct, experiment

PAUSE = Acted("pause", 5_000, 30_000, {"mode": "in_place", "held_ms": 20}, "server")
FLUSH = Acted("flush", 7_000, 100, {"within_ms": 5000})
RESTART = Acted("restart", -2_000, 100)
STORM_OF_TWO = {
    "prompts": 2,
    "tokens": 40,
    "new_tokens": 8,
    "after_low_ms": 1,
    "after_high_ms": 9,
    "seed": 4,
}
STORM = Acted("abort-storm", 100, 2_000, STORM_OF_TWO)


def traced(*acted: Acted) -> Trace:
    """A prompt, then the actions, then the question."""
    script = Script()
    script.send(random_ids(120, 1))
    return replace(script.ask(0), acted=acted)


def test_a_bundle_keeps_them(tmp_path: Path) -> None:
    trace = traced(RESTART, STORM, PAUSE, FLUSH)
    write_bundle(tmp_path / "b", trace, about())
    assert read_bundle(tmp_path / "b")[0].acted == trace.acted
    assert json.loads((tmp_path / "b" / "bundle.json").read_text())["schema"] == 2
    write_bundle(tmp_path / "plain", traced(), about())
    assert json.loads((tmp_path / "plain" / "bundle.json").read_text())["schema"] == 1, "older soaks read it"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "melt"}, "no action"),
        ({"settings": {"argv": ["sh"]}}, "whole number or a short text"),
        ({"settings": {"held_ms": 10**9}}, "ms are held"),
        ({"settings": {"prompts": 10**6, "tokens": 10**6}}, "more prompts"),
        ({"argv": 1}, "argv"),
        ({"took_us": -1}, "took_us"),
    ],
)
def test_somebody_elses_bundle_is_checked(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    write_bundle(tmp_path / "b", traced(PAUSE), about())
    path = tmp_path / "b" / "bundle.json"
    whole = json.loads(path.read_text())
    whole["acted"][0] |= row
    path.write_text(json.dumps(whole))
    with pytest.raises(BundleError, match=words):
        read_bundle(tmp_path / "b")


async def replayed(trace: Trace, **manner: Any) -> Repeat:
    async with running(SimConfig(numerics="exact")) as url, SGLangClient(url) as client:
        session = Session(client, "test")

        async def free(_: int) -> None:
            """No budget."""

        return await replay_once(session, trace, salt(1, (10, 1000)), Manner(**manner), free)


@pytest.mark.parametrize("speed", list(Speed))
async def test_they_are_done_again_in_their_place(speed: Speed) -> None:
    trace = traced(STORM, PAUSE, replace(FLUSH, at_us=50_000))
    left = await replayed(trace, speed=speed)
    assert left.played is not None, "it was not flushed, so that there was a hit to ask about"
    assert left.played.acted == ()
    done = await replayed(trace, speed=speed, act=True)
    assert done.played is None, "flushed between writing and question"


async def test_a_replay_tells_its_leash_before_anything_is_in_force() -> None:
    told: list[str] = []

    def leash(name: str) -> AbstractContextManager[object]:
        @contextmanager
        def holding() -> Iterator[None]:
            told.append(name)
            yield
            told.append(f"{name} over")

        return holding()

    repeat = await replayed(traced(PAUSE), act=True, leash=leash)
    assert told == ["pause", "pause over"]
    assert repeat.played is not None
    (acted,) = repeat.played.acted
    assert acted.took_us >= 20_000


def test_the_leash_of_a_replay_is_a_ledger(tmp_path: Path) -> None:
    with leashed(Target(url="http://127.0.0.1:1"), tmp_path) as leash:
        with leash("pause"):
            (path,) = ledgers(tmp_path)
            (entry,) = read_ledger(path).in_force
            assert (entry.what, entry.undo.how, entry.undo.url) == ("pause", "continue", "http://127.0.0.1:1")
    assert ledgers(tmp_path) == []


def test_actions_that_do_not_matter_are_dropped() -> None:
    trace = traced(RESTART, STORM, PAUSE, FLUSH)
    search, tried = shrink(trace), 0
    candidate = next(search)
    try:
        while True:
            tried += 1
            candidate = search.send(any(acted.name == "pause" for acted in candidate.acted))
    except StopIteration as done:
        assert [acted.name for acted in done.value.acted] == ["pause"]
    assert tried < 60


def test_they_count_as_conditions_of_known_faults() -> None:
    def named(*acted: Acted) -> set[str]:
        trace = traced(*acted)
        return {one.fault.name for one in candidates(trace, history_of(trace), about())}

    aborting = replace(PAUSE, settings={"mode": "abort", "held_ms": 20})
    assert "abort-slot-reuse" in named(aborting) - named()
    assert named(PAUSE) == named()  # a pause that keeps what runs aborts nothing


async def test_an_incident_names_the_actions_in_its_window(tmp_path: Path) -> None:
    soak = {
        **LIGHT,
        "load": {**LIGHT["load"], "rate": 4},
        "probe": {**LIGHT["probe"], "rate": 20},
        "detect": {"p0_max": 0.5, "max_abs_d": 1e-3},
    }
    actions = [
        {"do": "flush", "at": "200ms"},
        {"do": "pause", "mode": "in_place", "at": "300ms", "for": "300ms"},
    ]
    fault = "middle-truncated"
    async with running(SimConfig(numerics="exact", faults=(fault,), **settings_for([fault]))) as url:
        planned = experiment(
            url, actions, soak=soak, stop_when={"error_share": None, "corrupt": False}, cool_down="12s"
        )
        report = await conduct(planned, tmp_path)
    assert report["verdict"] == "CORRUPT"
    assert report["exit_code"] == 1
    reader = JournalReader(tmp_path / "out" / "journal.sqlite")
    try:
        (incident, *_) = reader.incidents()
        words = explained(reader, incident.id, {})
    finally:
        reader.close()
    assert "In force, by an experiment: flush on server" in words
    assert "In force, by an experiment: pause (in_place) on server" in words
