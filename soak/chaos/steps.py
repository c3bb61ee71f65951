"""The actions of an experiment as its YAML names them: what each may be told, and its plain settings.

Pure data and checks. Doing any of it is for others.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from soak.config.values import Seconds, Section, Share, duration_s
from soak.drive import deed
from soak.drive.deed import Settings


def span(value: object) -> tuple[float, float]:
    """(low, high) seconds of a duration, or of two to draw between. Raises ValueError in words."""
    ends = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(ends) != 2:
        raise ValueError("a duration such as 20s, or two such as [20s, 40s], is wanted")
    low, high = (duration_s(end) for end in ends)
    if high < low:
        raise ValueError(f"the second of two durations must not be the shorter: {low:g} s to {high:g} s")
    return low, high


Span = Annotated[tuple[float, float], BeforeValidator(span)]
Millis = Annotated[int, Field(ge=0, le=600_000)]


class Step(Section):
    """What all actions have: when, how often, and on which target (by default the one that is soaked).

    at: from when the witnesses are planted, one time or two to draw between; times: how often, each drawn for
    itself.
    """

    hurts: ClassVar[bool] = True  # whether others than ourselves can feel it
    lasts: ClassVar[bool] = False  # whether it is in force for the time that ``for`` says

    target: str | None = None
    at: Span
    times: Annotated[int, Field(ge=1, le=1000)] = 1

    @property
    def lasting(self) -> tuple[float, float]:
        """Between how many seconds it is in force."""
        return getattr(self, "for_", (0.0, 0.0))

    def settings(self, seed: int) -> dict[str, int | str]:
        """All that is needed to do it again but for how long; ``seed`` makes its prompts and choices."""
        del seed
        return {}


class _Lasting(Step):
    lasts: ClassVar[bool] = True
    for_: Span = Field(alias="for")


class Flush(Step):
    """Empty the cache, once the server is idle within that time."""

    do: Literal["flush"]
    within: Seconds = 10.0

    def settings(self, seed: int) -> dict[str, int | str]:
        return {"within_ms": round(self.within * 1000)}


class Pause(_Lasting):
    """Generate nothing for a while. abort ends everybody's requests, retract sends them back to the queue."""

    do: Literal["pause"]
    mode: Literal["abort", "retract", "in_place"]

    def settings(self, seed: int) -> dict[str, int | str]:
        return {"mode": self.mode}


class Reload(Step):
    """Load the same weights again, which empties the cache."""

    do: Literal["reload"]
    within: Seconds = 120.0

    def settings(self, seed: int) -> dict[str, int | str]:
        return {"within_ms": round(self.within * 1000)}


class Retraction(_Lasting):
    """Retract on purpose: requests of our own generate, and a pause in mode retract sends them back."""

    do: Literal["retraction"]
    prompts: Annotated[int, Field(ge=1, le=256)] = 4
    tokens: Annotated[int, Field(ge=8, le=65536)] = 200
    new_tokens: Annotated[int, Field(ge=8, le=65536)] = 256

    def settings(self, seed: int) -> dict[str, int | str]:
        made = {"prompts": self.prompts, "tokens": self.tokens, "new_tokens": self.new_tokens}
        return {"mode": "retract", **made, "seed": seed}


class Pressure(Step):
    """Prompts of our own that want ``fill`` times the pool: prefixes are evicted, requests retracted."""

    do: Literal["pressure"]
    fill: Annotated[float, Field(gt=0, le=16)] = 1.2
    tokens: Annotated[int, Field(ge=16, le=65536)] = 512
    new_tokens: Annotated[int, Field(ge=0, le=65536)] = 16

    def settings(self, seed: int) -> dict[str, int | str]:
        per_mille = round(self.fill * 1000)
        return {
            "fill_per_mille": per_mille, "tokens": self.tokens, "new_tokens": self.new_tokens, "seed": seed,
        }  # fmt: skip


class AbortStorm(Step):
    """Prompts of our own, each taken back after a time between the two of ``after``; nobody else's are."""

    hurts: ClassVar[bool] = False

    do: Literal["abort-storm"]
    prompts: Annotated[int, Field(ge=1, le=1000)] = 16
    tokens: Annotated[int, Field(ge=16, le=65536)] = 700
    new_tokens: Annotated[int, Field(ge=1, le=65536)] = 64
    after: tuple[Millis, Millis] = (1, 200)
    of: Literal["fresh", "witnesses"] = (
        "fresh"  # witnesses: each begins with a prefix that was planted before
    )

    def settings(self, seed: int) -> dict[str, int | str]:
        low, high = sorted(self.after)
        made = {"prompts": self.prompts, "tokens": self.tokens, "new_tokens": self.new_tokens}
        return {**made, "after_low_ms": low, "after_high_ms": high, "seed": seed}


class Restart(Step):
    """Run the target's restart command, and wait until it serves again."""

    do: Literal["restart"]


class Kill(_Lasting):
    """Run the target's kill command, and its start command after that time."""

    do: Literal["kill"]


class RollingRestart(Step):
    """Restart targets one after the other, each some time after the one before serves again."""

    do: Literal["rolling-restart"]
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    apart: Seconds = 5.0


class _OfTheNetwork(_Lasting):
    """Between soak and the server only: nobody else's connection goes through our proxy."""

    hurts: ClassVar[bool] = False

    def settings(self, seed: int) -> dict[str, int | str]:
        return {**self._told(), "seed": seed}

    @abstractmethod
    def _told(self) -> dict[str, int | str]:
        """What the proxy is told."""


class Latency(_OfTheNetwork):
    """Whatever passes arrives that much later, and by up to ``jitter`` more."""

    do: Literal["latency"]
    delay: Millis = 0
    jitter: Millis = 0

    def _told(self) -> dict[str, int | str]:
        return {"delay_ms": self.delay, "jitter_ms": self.jitter}


class ConnectionLoss(_OfTheNetwork):
    """That share of the connections is reset: those that are open, and new ones with their first answer."""

    do: Literal["connection-loss"]
    share: Share = 1.0

    def _told(self) -> dict[str, int | str]:
        return {"share_per_mille": round(self.share * 1000)}


class HalfOpen(_OfTheNetwork):
    """That share of the connections carries nothing any more, and says nothing of it to either side."""

    do: Literal["half-open"]
    share: Share = 1.0

    def _told(self) -> dict[str, int | str]:
        return {"share_per_mille": round(self.share * 1000)}


class SlowReader(_OfTheNetwork):
    """Answers are taken from the server at so many bytes a second and connection, as a slow client would."""

    do: Literal["slow-reader"]
    bytes_per_second: Annotated[int, Field(ge=64, le=1 << 30)] = 4096

    def _told(self) -> dict[str, int | str]:
        return {"bytes_per_second": self.bytes_per_second}


class Truncate(_OfTheNetwork):
    """That share of the connections ends in good order after so many bytes of answers."""

    do: Literal["truncate"]
    share: Share = 1.0
    after_bytes: Annotated[int, Field(ge=0, le=1 << 30)] = 600

    def _told(self) -> dict[str, int | str]:
        return {"share_per_mille": round(self.share * 1000), "after_bytes": self.after_bytes}


def _do(value: Any) -> str:
    """Which action it is: the key ``do``."""
    return str(value.get("do", "")) if isinstance(value, dict) else str(getattr(value, "do", ""))


AnyStep = Annotated[
    Annotated[Flush, Tag("flush")]
    | Annotated[Pause, Tag("pause")]
    | Annotated[Reload, Tag("reload")]
    | Annotated[Retraction, Tag("retraction")]
    | Annotated[Pressure, Tag("pressure")]
    | Annotated[AbortStorm, Tag("abort-storm")]
    | Annotated[Restart, Tag("restart")]
    | Annotated[Kill, Tag("kill")]
    | Annotated[RollingRestart, Tag("rolling-restart")]
    | Annotated[Latency, Tag("latency")]
    | Annotated[ConnectionLoss, Tag("connection-loss")]
    | Annotated[HalfOpen, Tag("half-open")]
    | Annotated[SlowReader, Tag("slow-reader")]
    | Annotated[Truncate, Tag("truncate")],
    Discriminator(_do),
]  # fmt: skip

NEEDS: dict[str, tuple[str, ...]] = {
    deed.RESTART: ("restart",),
    deed.ROLLING_RESTART: ("restart",),
    deed.KILL: ("kill", "start"),
}
"""The commands that an action wants of its target."""

__all__ = ["NEEDS", "AnyStep", "Settings", "Step", "span"]


def targets_of(step: Any, soaked: str) -> tuple[str, ...]:
    """The targets that an action touches."""
    if isinstance(step, RollingRestart):
        return step.targets
    return (step.target or soaked,)
