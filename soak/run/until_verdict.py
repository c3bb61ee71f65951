"""A run that ends when its verdict is there: for a demonstration, whose machine may be busy.

It changes nothing of how a verdict comes about. The detectors' error holds whenever somebody stops to look,
so that stopping at a verdict makes none likelier to be false.
"""

from __future__ import annotations

import asyncio

from soak.detect.verdict import Verdict
from soak.run.parts import Parts
from soak.sglang.preflight import Target

_LOOK_S = 0.5


class UntilVerdict:
    """Beside a run: ends it after ``at_least_s`` if the verdict is ``wanted``, else as soon as it is.

    Also as soon as it cannot be any more: an alarm stands. The run's own duration is the latest end;
    ``at_most_s`` is only said.
    """

    def __init__(self, wanted: Verdict, at_least_s: float, at_most_s: float) -> None:
        self._wanted, self._at_least_s, self._at_most_s = wanted, at_least_s, at_most_s

    async def run(self, parts: Parts, target: Target) -> None:
        """Until then."""
        del target
        await asyncio.sleep(self._at_least_s)
        record = parts.record
        if not self._settled(verdict := record.verdict()[0]):
            record.say(
                f"{self._at_least_s:.0f} s are over and it is {verdict.value} from "
                f"{record.tally.probes_valid} valid probes: a busy machine asks fewer. Going on until it "
                f"is {self._wanted.value}, at most {self._at_most_s - self._at_least_s:.0f} s more; "
                "Ctrl-C ends it"
            )
        while not self._settled(record.verdict()[0]):  # noqa: ASYNC110 - a verdict also ages, by no event
            await asyncio.sleep(_LOOK_S)

    def _settled(self, verdict: Verdict) -> bool:
        alarmed = verdict is Verdict.CORRUPT or (
            verdict is Verdict.SUSPECT and self._wanted is not Verdict.CORRUPT
        )
        return verdict is self._wanted or alarmed
