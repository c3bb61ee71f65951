from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from soak.detect.verdict import Verdict
from soak.run import until_verdict
from soak.run.until_verdict import UntilVerdict


class Told:
    """A record whose verdict is the next of a list, then the last for good; it keeps what is said."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts, self.said = list(verdicts), list[str]()
        self.tally = SimpleNamespace(probes_valid=32)

    def verdict(self) -> tuple[Verdict, list[str]]:
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0], []

    def say(self, words: str) -> None:
        self.said.append(words)


async def ended(wanted: Verdict, *verdicts: Verdict) -> Told:
    told = Told(*verdicts)
    async with asyncio.timeout(10):
        await UntilVerdict(wanted, 0.0, 225.0).run(
            cast("Any", SimpleNamespace(record=told)), cast("Any", None)
        )
    return told


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_verdict, "_LOOK_S", 0.0)


async def test_what_is_there_in_time_ends_it_without_a_word() -> None:
    assert (await ended(Verdict.CORRUPT, Verdict.CORRUPT)).said == []


async def test_a_busy_machine_is_told_and_waited_for() -> None:
    slowly = (Verdict.CALIBRATING, Verdict.CALIBRATING, Verdict.SUSPECT, Verdict.CORRUPT)
    told = await ended(Verdict.CORRUPT, *slowly)
    (words,) = told.said
    assert "it is CALIBRATING from 32 valid probes" in words
    assert "until it is CORRUPT, at most 225 s more" in words
    assert told.verdicts == [Verdict.CORRUPT]


@pytest.mark.parametrize("alarm", [Verdict.SUSPECT, Verdict.CORRUPT])
async def test_nobody_waits_for_clean_behind_an_alarm(alarm: Verdict) -> None:
    told = await ended(Verdict.CLEAN, Verdict.VACUOUS, Verdict.VACUOUS, alarm, Verdict.CLEAN)
    assert told.verdicts == [Verdict.CLEAN], "it went on looking"


async def test_it_goes_on_for_as_long_as_it_is_not_there() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ended(Verdict.CORRUPT, Verdict.SUSPECT)
