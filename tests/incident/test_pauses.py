"""A pause of the load's own: in the journal, and done again before what queued up in it is sent."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from soak.drive.deed import DONE, LOAD, PAUSE
from soak.incident.journal_reader import JournalReader
from soak.incident.order import Speed
from soak.incident.player import Manner
from soak.incident.replay import replay_once
from soak.incident.salt import salt
from soak.incident.trace import Acted, Trace
from soak.plan.item import Pause
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.incident.journalled import Run
from tests.incident.test_player import ORDINARY, free
from tests.incident.traces import Script, random_ids

HELD_MS = 60


def queued() -> Trace:
    """Two prompts that were sent into a pause, as a CONFIG's pause-queue does."""
    script = Script(lasts_us=90_000)
    script.send(random_ids(40, 1), lasts_us=1_000)
    script.rest()
    paused = Acted(PAUSE, script.now_us, 70_000, {"mode": Pause.IN_PLACE.value, "held_ms": HELD_MS}, LOAD)
    script.now_us += 2_000
    script.send(random_ids(50, 2))
    script.send(random_ids(60, 3))
    return replace(script.ask(1), acted=(paused,))


async def test_a_session_tells_of_its_pauses_when_they_are_over() -> None:
    async with running(SimConfig(numerics="exact")) as url, SGLangClient(url) as client:
        session, told = Session(client, "test"), list[tuple[str, float]]()
        session.on_paused = lambda mode, began_s, ended_s: told.append((mode, ended_s - began_s))
        async with session.held(Pause.IN_PLACE.value):
            assert not told
            await session.let_go_on()
            assert len(told) == 1
        assert [mode for mode, _ in told] == [Pause.IN_PLACE.value]  # once, though it was ended twice
        assert told[0][1] >= 0.0


def test_the_journal_keeps_them_apart_from_an_experiments_actions(tmp_path: Path) -> None:
    run = Run(tmp_path / "journal.sqlite")
    now = time.monotonic()
    for mode, began_s in ((Pause.IN_PLACE, now), (Pause.RETRACT, now + 1)):
        run.journal.paused(mode.value, began_s, began_s + 0.0304)
    run.journal.close()
    with closing(JournalReader(run.path)) as reader:
        rows = reader.deeds([(0, 1 << 60)])
    assert [(row.number, row.name, row.target, row.outcome) for row in rows] == [
        (-1, PAUSE, LOAD, DONE),
        (-2, PAUSE, LOAD, DONE),
    ]
    assert [row.settings for row in rows] == [
        {"mode": "in_place", "held_ms": 30},
        {"mode": "retract", "held_ms": 30},
    ]


@pytest.mark.parametrize("speed", list(Speed))
async def test_what_queued_up_in_a_pause_queues_up_again(speed: Speed) -> None:
    trace = queued()
    async with running(SimConfig(numerics="exact")) as url, SGLangClient(url) as client:
        session = Session(client, "test")
        repeat = await replay_once(session, trace, salt(1, ORDINARY), Manner(speed, act=True), free)
        left = await replay_once(session, trace, salt(2, ORDINARY), Manner(speed), free)
    assert repeat.fidelity.done == ("pause (in_place)",)
    assert repeat.fidelity.refused == left.fidelity.done == ()
    assert repeat.played is not None
    (paused,) = repeat.played.acted
    for sent, seen in list(zip(repeat.played.sent, repeat.played.seen, strict=True))[1:]:
        assert sent.sent_us >= paused.at_us
        assert seen.finished_us >= paused.at_us + HELD_MS * 1000
