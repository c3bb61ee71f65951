"""Beside a soak: plants witnesses, acts at drawn times, stops if it must, undoes, asks what holds.

It begins no action after a stop condition, and leaves nothing in force: what an action itself could not end
is ended from the ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from soak.chaos.acting import Acting
from soak.chaos.afterwards import Afterwards, Condition
from soak.chaos.ledger import ABORT, LedgerUnusable
from soak.chaos.phases import Phases
from soak.chaos.schedule import Planned
from soak.chaos.spec import Experiment
from soak.chaos.undoing import Undone, undo
from soak.chaos.witnesses import Seen, Witnesses
from soak.detect.verdict import Verdict
from soak.drive.deed import DONE, FAILED, IN_FORCE, UNDONE, Deed
from soak.drive.doing import NotDoneError, Own
from soak.plan.words import Draw
from soak.run.parts import Parts
from soak.sglang.preflight import Target

_LOOK_S = 0.2


@dataclass(slots=True)
class Conducted:
    """What came of it. stopped: the stop condition in words, or empty; began_s: of the monotonic clock."""

    began_s: float = 0.0
    deeds: dict[int, Deed] = field(default_factory=dict)
    before: list[Seen] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    undone: list[Undone] = field(default_factory=list)
    stopped: str = ""
    whole: bool = False  # it came to its end, conditions and all


class Conductor:
    """Conducts one experiment once. ``phases`` and ``result`` are there from the start."""

    def __init__(
        self, experiment: Experiment, planned: Sequence[Planned], acting: Acting, max_abs_d: float | None,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._experiment, self._planned, self._acting = experiment, planned, acting
        self._max_abs_d, self._timeout_s = max_abs_d, timeout_s
        self._own: dict[str, list[Own]] = {}
        self._begun, self._nonce = False, 0
        self.phases = Phases(experiment.cool_down)
        self.result = Conducted()

    async def run(self, parts: Parts, target: Target) -> None:
        """All of it, on a soak's parts. A second server in the place of the first has nothing done to it."""
        if self._begun:
            self.result.stopped = self.result.stopped or "another server answers in its place"
            return
        self._begun = True
        parts.record.beside.append(self.phases.observe)
        geometry = target.geometry
        ordinary = (geometry.reserved_ids, geometry.vocab_size)
        self._nonce = int.from_bytes(hashlib.blake2b(parts.session.run_id.encode(), digest_size=8).digest())
        seed = Draw(self._experiment.seed, "chaos witnesses", 0, self._nonce).below(1 << 62)
        witnesses = Witnesses(parts.session, ordinary, self._timeout_s, self._max_abs_d)
        self.result.before = await witnesses.plant(
            seed, self._experiment.witnesses, self._experiment.witness_tokens
        )
        self.result.began_s = time.monotonic()
        try:
            await self._act(parts, target, ordinary, seed)
        finally:
            await self._undo_what_is_left()
        await asyncio.sleep(self._experiment.cool_down)
        after = Afterwards(witnesses, self._own, self._acting.clients, self._touched())
        for name in self._experiment.afterwards:
            self.result.conditions.append(await after.ask(name))
        self.result.whole = True

    def _touched(self) -> list[str]:
        names = [name for planned in self._planned for name in planned.targets]
        return list(dict.fromkeys([self._experiment.soaked, *names]))

    async def _act(self, parts: Parts, target: Target, ordinary: tuple[int, int], seed: int) -> None:
        tasks = [
            asyncio.create_task(self._one(planned, parts, target, ordinary, seed))
            for planned in self._planned
        ]
        stop = asyncio.create_task(self._until_stopped(parts))
        waiting: set[asyncio.Task[None]] = set(tasks)
        try:
            while waiting and not stop.done():
                done, pending = await asyncio.wait({*waiting, stop}, return_when=asyncio.FIRST_COMPLETED)
                waiting &= pending
                for task in done:
                    task.result()  # a fault of ours ends the run
            if stop.done():
                self.result.stopped = stop.result()
                parts.record.say(f"experiment stopped: {self.result.stopped}")
        finally:
            for each in (*tasks, stop):
                each.cancel()
            await asyncio.gather(*tasks, stop, return_exceptions=True)

    async def _one(
        self, planned: Planned, parts: Parts, target: Target, ordinary: tuple[int, int], seed: int
    ) -> None:
        at_s = self.result.began_s + planned.at_us / 1e6
        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        async with self._acting.room(planned):
            settings = self._acting.settled(planned, target.geometry, self._nonce, seed)
            began = Deed(
                planned.number, planned.name, ", ".join(planned.targets), time.monotonic(), settings=settings
            )
            span = self.phases.begun(began.began_s)
            self._told(parts, began)
            outcome, detail = UNDONE, "it was ended before its time"
            try:
                words, own = await self._acting.act(
                    planned, settings, parts.session, ordinary, self._timeout_s
                )
                self._own.setdefault(planned.name, []).extend(own)
                outcome, detail = DONE, words
            except (NotDoneError, LedgerUnusable) as error:
                outcome, detail = FAILED, str(error)
            finally:
                now = time.monotonic()
                self.phases.ended(span, now)
                self._told(parts, replace(began, ended_s=now, outcome=outcome, detail=detail))

    def _told(self, parts: Parts, deed: Deed) -> None:
        self.result.deeds[deed.number] = deed
        parts.record.observe_deed(deed)

    async def _until_stopped(self, parts: Parts) -> str:
        """Wait for a stop condition; it in words."""
        when = self._experiment.stop_when
        while True:
            await asyncio.sleep(_LOOK_S)
            share = self.phases.recent_error_share(when.answers)
            if when.error_share is not None and share is not None and share > when.error_share:
                return f"{share:.0%} of the last {when.answers} answers were errors"
            if when.gone is not None and parts.continuity.gone_s > when.gone:
                return f"the server had been gone for {parts.continuity.gone_s:.0f} s"
            if when.corrupt and parts.record.verdict()[0] is Verdict.CORRUPT:
                return "the verdict is CORRUPT"

    async def _undo_what_is_left(self) -> None:
        """Whatever an action left, the latest first; what cannot be undone stays in the ledger."""
        ledger = self._acting.ledger
        for entry in reversed(ledger.in_force):
            if entry.undo.how == ABORT:
                continue  # the requests of the run itself, which its session takes back
            ok, words = await undo(entry.undo)
            self.result.undone.append(Undone(self._experiment.experiment, entry, ok, words))
            if ok:
                ledger.end(entry.number)


def outcomes(deeds: Mapping[int, Deed]) -> dict[str, int]:
    """How many actions came to what."""
    counts: dict[str, int] = {}
    for deed in deeds.values():
        if deed.outcome != IN_FORCE:
            counts[deed.outcome] = counts.get(deed.outcome, 0) + 1
    return counts
