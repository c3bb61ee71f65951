"""When each action happens: a pure function of seed and experiment. No clock, no server, no I/O.

Whole microseconds from when the witnesses are planted. What an action draws depends on the seed, on its
place in the file and on which time of it this is, so that a change to one action leaves the others alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from soak.chaos.spec import Experiment
from soak.chaos.steps import AnyStep, targets_of
from soak.drive.deed import Settings
from soak.plan.words import Draw

_TURNS = 1000  # at most so many times of one action


@dataclass(frozen=True, slots=True)
class Planned:
    """number: its place by time; action: its place in the file; turn: which time of it. for_us: 0 at once."""

    number: int
    action: int
    turn: int
    name: str
    targets: tuple[str, ...]
    at_us: int
    for_us: int
    settings: Settings = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "number": self.number,
            "name": self.name,
            "targets": list(self.targets),
            "at_s": self.at_us / 1e6,
            "for_s": self.for_us / 1e6,
            "settings": dict(self.settings),
        }


def schedule(experiment: Experiment) -> tuple[Planned, ...]:
    """All actions in order of time."""
    drawn = [
        (action, turn, step, *_drawn(experiment.seed, action, turn, step))
        for action, step in enumerate(experiment.actions)
        for turn in range(step.times)
    ]
    drawn.sort(key=lambda one: (one[3], one[0], one[1]))
    return tuple(
        Planned(
            number=number,
            action=action,
            turn=turn,
            name=step.do,
            targets=targets_of(step, experiment.soaked),
            at_us=at_us,
            for_us=for_us,
            settings=step.settings(seed) | ({"held_ms": for_us // 1000} if for_us else {}),
        )
        for number, (action, turn, step, at_us, for_us, seed) in enumerate(drawn)
    )


def _drawn(seed: int, action: int, turn: int, step: AnyStep) -> tuple[int, int, int]:
    """Start and length in microseconds, and a seed for what the action draws itself."""
    index = action * _TURNS + turn
    low, high = (round(second * 1e6) for second in step.at)
    shortest, longest = (round(second * 1e6) for second in step.lasting)
    at_us = Draw(seed, "chaos at", index).between(low, high)
    for_us = Draw(seed, "chaos for", index).between(shortest, longest)
    return at_us, for_us, Draw(seed, "chaos own", index).below(1 << 62)


def ends_us(planned: tuple[Planned, ...]) -> int:
    """When the last action is over, if each is as quick as it can be."""
    return max(one.at_us + one.for_us for one in planned)
