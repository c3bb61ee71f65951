"""Exact mode: where a server agrees with itself to the last bit, one difference is a finding.

It needs the server's word, cold passes that repeat and healthy resumes that agree; without any one of them
the tolerance channels judge. It never guesses which of two cold passes is the right one.
"""

from __future__ import annotations

import enum
from typing import Any

from soak.detect.settings import HANDFUL
from soak.detect.verdict import Alarm, Verdict
from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeResult

CONDITION_SHARE = 0.25
"""Of the tokens asked for, this share must have agreed in a probe's own condition: alone, or under load."""


class Finding(enum.Enum):
    """What exact mode says of one probe."""

    SILENT = "silent"  # not in force for this probe, or no difference
    UNREPEATED = "unrepeated"  # a difference, and the cold pass was not repeated
    COLDS_DIFFER = "colds_differ"  # a difference, and the server does not repeat its own cold pass
    CORRUPT = "corrupt"  # a difference, and both cold passes agree


class _Agreement:
    """Scored tokens that agreed to the last bit, in quiet and under load; False for good once one did not."""

    def __init__(self, quiet: int = 0, loaded: int = 0, zero: bool = True) -> None:
        self.tokens = [quiet, loaded]
        self.zero = zero

    def add(self, divergence: Divergence, under_load: bool) -> None:
        self.tokens[under_load] += divergence.tokens
        self.zero = self.zero and divergence.zero

    def enough(self, under_load: bool, needed: int) -> bool:
        return (
            self.zero and sum(self.tokens) >= needed and self.tokens[under_load] >= CONDITION_SHARE * needed
        )


class ExactMode:
    """Entry and exit per resume kind. ``left`` says why it is off for good, empty while it is not."""

    def __init__(self, deterministic: bool, tokens: int) -> None:
        self._deterministic = deterministic
        self._needed = tokens
        self._cold = _Agreement()
        self._controls: dict[str, _Agreement] = {}
        self._probes: dict[str, list[int]] = {}  # by kind: alone, under load
        self.left = ""

    def possible(self, kind: str) -> bool:
        """Whether this kind is in exact mode or can still get there."""
        controls = self._controls.get(kind)
        return (
            self._deterministic and not self.left and self._cold.zero and (controls is None or controls.zero)
        )

    def covers(self, kind: str, under_load: bool) -> bool:
        """Whether a probe of this kind, in this condition, is judged to the last bit."""
        controls = self._controls.get(kind)
        return (
            self.possible(kind)
            and controls is not None
            and self._cold.enough(under_load, self._needed)
            and controls.enough(under_load, self._needed)
        )

    def in_force(self, kind: str) -> bool:
        """Whether all probes of this kind are judged to the last bit, in the conditions they met."""
        return all(self.covers(kind, loaded) for loaded in self._conditions(kind))

    def _conditions(self, kind: str) -> list[bool]:
        """Conditions that matter: those with a handful of probes, or else those met at all, or else both."""
        probes = self._probes.get(kind, [0, 0])
        for least in (HANDFUL, 1):
            met = [loaded for loaded in (False, True) if probes[loaded] >= least]
            if met:
                return met
        return [False, True]

    def anywhere(self) -> bool:
        """Whether exact mode judges any kind, in any condition."""
        return any(self.covers(kind, loaded) for kind in self._controls for loaded in (False, True))

    def wants_cold_repeat(self) -> bool:
        """Whether repeated cold passes are what exact mode still waits for."""
        conditions = {loaded for kind in self._probes for loaded in self._conditions(kind)}
        conditions = conditions or {False, True}
        return (
            self._deterministic
            and not self.left
            and self._cold.zero
            and not all(self._cold.enough(loaded, self._needed) for loaded in conditions)
        )

    def judge(self, result: ProbeResult) -> Finding:
        """Look at one valid probe, before its control and its repeated cold pass are taken in."""
        kind = result.kind.value
        self._probes.setdefault(kind, [0, 0])[result.under_load] += 1
        if result.divergence is None or result.divergence.zero or not self.covers(kind, result.under_load):
            return Finding.SILENT
        if result.cold_repeat is None:
            return Finding.UNREPEATED
        return Finding.CORRUPT if result.cold_repeat.zero else Finding.COLDS_DIFFER

    def leave(self, why: str) -> None:
        """Exact mode is over, for all kinds: the server does not repeat itself."""
        self.left = why

    def add_cold(self, repeat: Divergence, under_load: bool) -> None:
        """A second cold pass against the first."""
        self._cold.add(repeat, under_load)

    def add_control(self, kind: str, control: Divergence, under_load: bool) -> None:
        """A control pass against its cold pass."""
        self._controls.setdefault(kind, _Agreement()).add(control, under_load)

    def progress(self, kind: str) -> str:
        """Where exact mode stands for a kind, in words."""
        if not self._deterministic:
            return "the server does not report deterministic inference"
        if self.left:
            return self.left
        if not self._cold.zero:
            return "repeated cold passes did not agree to the last bit"
        controls = self._controls.get(kind, _Agreement())
        if not controls.zero:
            return "cold passes repeat to the last bit, but controls of this kind differ from them"
        if self.in_force(kind):
            return "every difference counts"
        return (
            f"agreed so far: {sum(self._cold.tokens)} tokens of repeated cold passes and "
            f"{sum(controls.tokens)} of controls, {self._needed} needed, a quarter of them in each condition "
            "(alone, under load) probed"
        )

    def state(self) -> dict[str, Any]:
        """Plain values for ``restore``."""
        return {
            "left": self.left,
            "cold": [*self._cold.tokens, self._cold.zero],
            "controls": {kind: [*held.tokens, held.zero] for kind, held in self._controls.items()},
            "probes": {kind: list(counts) for kind, counts in self._probes.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what ``state`` gave, in place of everything held."""
        self.left = str(state["left"])
        self._cold = _Agreement(*state["cold"])
        self._controls = {kind: _Agreement(*held) for kind, held in state["controls"].items()}
        self._probes = {kind: list(counts) for kind, counts in state["probes"].items()}


def probe_alarm(result: ProbeResult, finding: Finding) -> Alarm | None:
    """What a finding comes to. None where the colds differ: that is the end of exact mode, not a fault."""
    divergence, pair = result.divergence, result.confirmation
    if divergence is None or finding not in (Finding.CORRUPT, Finding.UNREPEATED):
        return None
    onset = f"from scored token {divergence.onset} on" if divergence.onset else "nowhere over the onset bound"
    where = f"warm differs from cold (max |d| {divergence.max_abs:.3g} nats, {onset})"
    if finding is Finding.UNREPEATED:
        words = f"{where}; the cold pass was not repeated, so which of them is right is open"
        return Alarm(Verdict.SUSPECT, "exact", result.stream, result.shape, words, (result.number,))
    again = "" if pair is None else f"; a second warm pass {'agreed' if pair.zero else 'differed too'}"
    words = f"{where} where both cold passes agree to the last bit{again}"
    return Alarm(Verdict.CORRUPT, "exact", result.stream, result.shape, words, (result.number,))


def control_alarm(result: ProbeResult) -> Alarm | None:
    """A control that differs while exact mode is in force for its probe, and no cold pass explains it."""
    control, repeat = result.control, result.cold_repeat
    if control is None or control.zero or (repeat is not None and not repeat.zero):
        return None
    words = (
        f"a control differs from its cold pass by {control.max_abs:.3g} nats where every one before agreed "
        "to the last bit; this kind leaves exact mode"
    )
    return Alarm(Verdict.SUSPECT, "exact-control", result.stream, result.shape, words, (result.number,))
