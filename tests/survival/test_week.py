"""A week in a few minutes: a loop whose clock jumps to the next thing to do, and the parts of a run on it."""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from pathlib import Path
from typing import Any

import pytest

from tests.survival.in_memory import Instant, wired

DAY = 86_400.0


class Jumping(selectors.DefaultSelector):
    """Waits for nothing: time that nobody uses has passed at once."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(None if timeout is None else 0)
        if not events and timeout:
            self.now += timeout
        return events


class Loop(asyncio.SelectorEventLoop):
    """A loop on that clock."""

    def __init__(self) -> None:
        self.clock = Jumping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class Second:
    """In place of the watch's throttle, which looks at its clock a hundred times a second."""

    async def __aenter__(self) -> None:
        await asyncio.sleep(1.0)

    async def __aexit__(self, *_: object) -> None:
        pass


class Nightly(Instant):
    """Restarts every night: 20 s without an answer, and counters that begin again."""

    def __init__(self, day_s: float) -> None:
        super().__init__()
        self.day_s = day_s
        self.sent = 0

    async def metrics_text(self) -> str | None:
        at = (time.monotonic() - 1000.0) % self.day_s
        if self.day_s / 2 < at < self.day_s / 2 + 20:
            self.sent = 0
            return None
        self.sent += 1
        return f"sglang:prompt_tokens_total {self.sent}\nsglang:num_queue_reqs 0\n"

    async def get_json(self, path: str) -> tuple[int | None, object | None, str]:
        if await self.metrics_text() is None:
            return None, None, "nobody there"
        return 200, {"version": "0.5.18", "model_path": "m"}, ""


async def soak(out: Path, days: float, day_s: float) -> dict[str, Any]:
    with wired(out, Nightly(day_s)) as parts:
        parts.watch._throttler = Second()  # type: ignore[assignment]
        clock = asyncio.get_running_loop().time
        for part in (parts.continuity, parts.brake, parts.lateness):
            part._clock = clock
        parts.continuity._looked_s = clock()
        watch = asyncio.create_task(parts.watch.until_lost())
        await parts.driver.run(days * day_s)
        assert not watch.done(), watch.result()
        watch.cancel()
        await parts.driver.drain(60.0)
        parts.continuity.let_go()
        return {
            "asked": parts.driver.asked,
            "delivered": parts.driver.delivered,
            "undelivered": dict(parts.driver.undelivered),
            "outcomes": parts.record.tally.outcomes,
            "gaps": parts.continuity.gaps,
            "outstanding": len(parts.session._outstanding),
            "journal": parts.record.journal,
        }


def a_while(out: Path, days: float, day_s: float, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=Loop) as runner:
        monkeypatch.setattr(time, "monotonic", runner.get_loop().time)
        found = runner.run(soak(out, days, day_s))
        monkeypatch.undo()
    assert found["asked"] == found["delivered"] + sum(found["undelivered"].values())
    assert sum(found["outcomes"].values()) == found["outcomes"]["ok"] == found["delivered"]
    assert set(found["undelivered"]) <= {"server-gone"}
    assert found["outstanding"] == 0
    assert len(found["gaps"]) == round(days)
    assert all(gap.restarted for gap in found["gaps"])
    assert all(18 < gap.seconds(0.0) < 24 for gap in found["gaps"])
    assert found["journal"].dropped == 0
    return found


def test_half_an_hour_with_two_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = a_while(tmp_path, 2, 900.0, monkeypatch)
    assert found["undelivered"]["server-gone"] >= 4


@pytest.mark.slow
def test_a_week_of_soaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = float(os.environ.get("SOAK_TEST_DAYS", "7"))
    began = time.perf_counter()
    found = a_while(tmp_path, days, DAY, monkeypatch)
    print(f"{days:g} days, {found['delivered']:,} prompts in {time.perf_counter() - began:.0f} s")
