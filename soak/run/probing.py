"""One probe or control after the other, within budget, while a run lasts. Believes none that it should not.

A probe compares what one server said at several moments. One during which the server went away, or was
replaced, says nothing; and before a result that looks bad is believed, the server is asked who it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeOutcome, ProbeResult
from soak.oracle.prober import Standalone
from soak.plan.words import Draw
from soak.run.continuity import Continuity
from soak.run.parts import Parts

_WAIT_S = 0.25
_OFF_NATS = 1.0  # a comparison whose furthest token is further off is asked about; healthy ones are not


class Probing:
    """The probe tasks of one run. ``on_begin``: told of each count; ``winding_down``: none begins.

    A shard counts its own probes, and the numbers that they go by are those congruent to it: no two shards
    ask a question of the same number, whose tokens would be the same.
    """

    def __init__(
        self, parts: Parts, on_begin: Callable[[int], None], *, shard: int = 0, shards: int = 1
    ) -> None:
        self._parts, self._on_begin = parts, on_begin
        self._shard, self._shards = shard, shards
        self._inside: set[asyncio.Task[Any]] = set()
        self._number = parts.desk.probes
        self.winding_down = False

    def inside(self, task: asyncio.Task[Any]) -> bool:
        """Whether that task is in the middle of a probe."""
        return task in self._inside

    async def run(self) -> None:
        """One probe after the other until the run winds down."""
        parts, task = self._parts, asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in a task
        while not self.winding_down:
            await parts.budget.wait()
            if parts.brake.reason is not None or not (parts.record.victims.ready or self._control_wanted()):
                await asyncio.sleep(_WAIT_S)
                continue
            self._number += 1
            parts.desk.probes = self._number
            self._on_begin(self._number)
            self._inside.add(task)
            try:
                await self._probe_or_control(self._number)
            finally:
                self._inside.discard(task)

    def _control_wanted(self) -> bool:
        """Whether a control can be made where no victim is to be asked about yet."""
        record = self._parts.record
        return bool(len(record.victims)) and record.lacking_controls() is not None

    def _invariance(self, number: int) -> bool:
        """Whether this number asks for two ways to the same answer."""
        share = self._parts.invariance_per_mille
        return bool(share) and Draw(self._parts.seed, "invariance-or-probe", number).chance(share)

    async def _probe_or_control(self, count: int) -> None:
        """While a kind is not calibrated, two counts of three go into controls of it."""
        parts = self._parts
        epoch = parts.continuity.epoch
        number = count * self._shards + self._shard
        lacking = parts.record.lacking_controls() if count % 3 or not parts.record.victims.ready else None
        if self._invariance(number):
            result: ProbeResult | Standalone | None = await parts.invariance.probe(number)
        elif lacking is None:
            result = await parts.prober.probe(number)
        else:
            result = await parts.prober.control(number, lacking)
        if isinstance(result, Standalone):
            parts.budget.spend(result.tokens_spent)
            if await believed(result, parts.continuity, epoch):
                parts.record.observe_control(result)
        elif result is not None:
            if not await believed(result, parts.continuity, epoch):
                result.outcome = ProbeOutcome.REQUEST_FAILED
                result.detail = "the server went away, or was replaced, while it was asked"
            if result.valid:
                parts.watch.alive()
            parts.budget.record(result)
            parts.record.observe_probe(result)


async def believed(result: ProbeResult | Standalone, continuity: Continuity, epoch: int) -> bool:
    """Whether all of it is surely about the server of that epoch."""
    if isinstance(result, Standalone):
        bad = _off(result.control.divergence)
    else:
        confirmed = result.confirmation is not None or "confirming" in result.detail
        bad = confirmed or result.outcome.hard_alarm or _off(result.divergence) or _off(result.control)
    if bad:
        return await continuity.same_since(epoch)
    return continuity.epoch == epoch and not continuity.gone


def _off(seen: Divergence | None) -> bool:
    return seen is not None and not seen.max_abs <= _OFF_NATS
