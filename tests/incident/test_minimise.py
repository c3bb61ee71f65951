"""Minimising: without a server against a made-up one, and on the simulator from a window of 500 prompts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from soak.incident.judge import Measured, original_of
from soak.incident.minimise import Minimised, Minimiser, NotReproducedError, about_minimised
from soak.incident.player import Manner
from soak.incident.readings import Readings, ReadingsError
from soak.incident.replay import Fidelity, Repeat, replay_once
from soak.incident.salt import salt
from soak.incident.trace import Trace
from soak.oracle.divergence import diverge
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from tests.incident.circle import simulator
from tests.incident.traces import Script, about, random_ids

CULPRITS = (61, 140)


def crowd(prompts: int = 200) -> Trace:
    script = Script()
    for number in range(prompts):
        script.send(random_ids(20 + number % 7, number))
        if number % 3 == 0:
            script.rest()
    script.rest()
    (victim,) = script.send(random_ids(64, 999))
    return script.ask(victim)


@dataclass
class MadeUp:
    """A server with a fault: the warm pass is off when both culprits were sent, and luck will have it."""

    whole: Trace
    rate: float = 1.0
    floor: float = 0.0
    seconds: float = 1.0
    dies_after: int = 10**9
    replays: int = 0
    luck: random.Random = field(default_factory=lambda: random.Random(1))

    async def replay(self, trace: Trace, noise: bool) -> Repeat:
        if self.replays >= self.dies_after:
            raise KeyboardInterrupt
        self.replays += 1
        sent = {s.ids.tobytes()[:60] for s in trace.sent}
        both = all(self.whole.sent[place].ids.tobytes()[:60] in sent for place in CULPRITS)
        off = 0.3 if both and self.luck.random() < self.rate else 0.0
        cold = np.full(16, -5.0)
        measured = Measured(64, (diverge(cold - off, cold),), (diverge(cold + self.floor, cold),))
        return Repeat(1, measured, Fidelity(0, 0, 0, 0), self.seconds, trace)


async def minimised(
    server: MadeUp, path: Path, budget_s: float = 1e6, say: Callable[[str], None] = lambda _: None
) -> Minimised:
    with Readings(path, server.whole) as readings:
        return await Minimiser(
            server.replay, original_of(server.whole.case), readings, budget_s=budget_s, say=say
        ).run(server.whole)


async def test_only_the_culprits_and_the_victim_are_left(tmp_path: Path) -> None:
    said: list[str] = []
    found = await minimised(MadeUp(crowd()), tmp_path / "readings", say=said.append)
    assert len(found.trace.sent) == 3
    assert found.whole
    assert (found.reproduced, found.replays) == (3, 3)
    assert any("200 prompts -> 3" in words or "201 prompts -> 3" in words for words in said)
    note = about_minimised(about(), crowd(), found).notes[-1]
    assert "minimised from 201 prompts to 3" in note


@pytest.mark.parametrize("rate", [0.3, 0.6])
async def test_a_flaky_fault_shrinks_as_well(rate: float, tmp_path: Path) -> None:
    server = MadeUp(crowd(150), rate=rate)
    found = await minimised(server, tmp_path / "readings")
    assert len(found.trace.sent) <= 20
    assert found.reproduced


async def test_the_noise_of_the_whole_trace_holds_for_the_cuts(tmp_path: Path) -> None:
    with pytest.raises(NotReproducedError, match="none of 12 replays"):
        await minimised(MadeUp(crowd(), floor=0.2), tmp_path / "readings")


async def test_a_healthy_server_has_nothing_to_shrink(tmp_path: Path) -> None:
    with pytest.raises(NotReproducedError):
        await minimised(MadeUp(crowd(), rate=0.0), tmp_path / "readings")


async def test_the_budget_ends_the_search_with_the_best_so_far(tmp_path: Path) -> None:
    found = await minimised(MadeUp(crowd()), tmp_path / "readings", budget_s=15)
    assert not found.whole
    assert 3 <= len(found.trace.sent) < 201
    assert "the budget ended the search" in about_minimised(about(), crowd(), found).notes[-1]


@pytest.mark.parametrize("killed_after", [1, 2, 9, 30])
async def test_a_killed_search_goes_on_where_it_was(killed_after: int, tmp_path: Path) -> None:
    path = tmp_path / "readings"
    undisturbed = MadeUp(crowd())
    wanted = await minimised(undisturbed, tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        await minimised(MadeUp(crowd(), dies_after=killed_after), path)
    with path.open("ab") as file:
        file.write(b'{"trace": "torn')
    second = MadeUp(crowd())
    found = await minimised(second, path)
    assert len(found.trace.sent) == len(wanted.trace.sent)
    if killed_after > 2:  # the baseline is kept as a whole
        assert second.replays == undisturbed.replays - killed_after
    third = MadeUp(crowd())
    await minimised(third, path)
    assert third.replays == 3  # nothing but the final confirmation


async def test_readings_of_another_trace_are_refused(tmp_path: Path) -> None:
    await minimised(MadeUp(crowd()), tmp_path / "readings")
    with pytest.raises(ReadingsError, match="another trace"):
        Readings(tmp_path / "readings", crowd(150))


@pytest.mark.parametrize("line", [b"{}\n", b"[1]\n", b"not json\n", b'{"trace": "a", "reading": "x"}\n'])
async def test_damaged_readings_are_refused(line: bytes, tmp_path: Path) -> None:
    await minimised(MadeUp(crowd()), tmp_path / "readings")
    with (tmp_path / "readings").open("ab") as file:
        file.write(line)
    with pytest.raises(ReadingsError, match="damaged"):
        Readings(tmp_path / "readings", crowd())


# On the simulator


def bystanders(script: Script, prompts: int, seed: int) -> None:
    """Short prompts that reach neither fault's conditions: none is long enough to be replayed by a graph."""
    wanted = len(script.sent) + prompts
    drawn = np.random.default_rng(seed)
    while len(script.sent) < wanted:
        count = min(int(drawn.integers(1, 5)), wanted - len(script.sent))
        script.send(
            *(
                random_ids(int(drawn.integers(12, 30)), 1000 * seed + len(script.sent) + i)
                for i in range(count)
            )
        )
        if drawn.integers(2):
            script.rest()


def rows() -> Trace:
    script = Script()
    bystanders(script, 400, 1)
    script.rest()
    _, victim = script.send(random_ids(128, 1), random_ids(128, 2))
    script.rest()
    script.send(random_ids(100, 3))
    script.rest()
    bystanders(script, 97, 2)
    return script.ask(victim)


def tail() -> Trace:
    script = Script()
    bystanders(script, 420, 1)
    script.rest()
    (victim,) = script.send(random_ids(100, 5), new=60)
    script.rest()
    bystanders(script, 79, 2)
    return script.ask(victim, decoded=True, prefix=128)


@pytest.mark.parametrize(
    ("fault", "trace", "most"), [("stale-track-rows", rows(), 6), ("stale-track-tail", tail(), 3)]
)
async def test_five_hundred_prompts_shrink_to_a_handful(
    fault: str, trace: Trace, most: int, tmp_path: Path
) -> None:
    assert len(trace.sent) == 500
    numbers = iter(range(1, 10_000))

    async def free(_: int) -> None:
        """No budget."""

    async with simulator(fault, max_mamba_slots=2048) as url, SGLangClient(url) as client:
        session = Session(client, "test")

        async def replay(one: Trace, noise: bool) -> Repeat:
            return await replay_once(
                session, one, salt(next(numbers), (10, 1000)), Manner(), free, noise=noise
            )

        with Readings(tmp_path / "readings", trace) as readings:
            minimiser = Minimiser(replay, original_of(trace.case), readings, budget_s=300, say=lambda _: None)
            found = await asyncio.wait_for(minimiser.run(trace), 300)
    assert len(found.trace.sent) <= most
    assert found.whole
    assert found.reproduced == 3
