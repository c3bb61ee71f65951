"""An experiment as its YAML says it: targets, actions, what should hold meanwhile and after, when to stop.

Everything that can be refused is refused here, before anything is sent: an action on a target that is not
named, one that others would feel on a target that is not given up to it, one whose command is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from soak.chaos.steps import NEEDS, AnyStep, targets_of
from soak.config import Config, ConfigError
from soak.config.reading import build
from soak.config.target import Target
from soak.config.values import Seconds, Section, Share
from soak.drive import deed

Argv = tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...]

POST_CONDITIONS = (
    "old-prefixes-cold", "old-prefixes-true", "retracted-like-cold", "aborted-not-poisoned", "fill-true",
    "serves",
)  # fmt: skip


class ChaosTarget(Section):
    """One server. disruptive: what others would feel may be done to it. Commands are argv lists, no shell's.

    restart: comes back by itself; kill and start go together. ready_within: how long it may take to serve.
    """

    url: str
    api_key_env: str = "SGLANG_API_KEY"
    api_key_file: Path | None = None
    allow_load: bool = False
    shared: bool = False
    disruptive: bool = False
    restart: Argv = ()
    kill: Argv = ()
    start: Argv = ()
    ready_within: Seconds = 300.0

    @model_validator(mode="after")
    def _an_address(self) -> ChaosTarget:
        self.as_target(self.url)
        return self

    @field_validator("restart", "kill", "start")
    @classmethod
    def _no_socket(cls, argv: Argv) -> Argv:
        if any("docker.sock" in word for word in argv):
            raise ValueError(
                "a container engine's socket is the whole machine: give a command that does this one thing, "
                "such as systemctl restart NAME or kubectl rollout restart deployment/NAME"
            )
        return argv

    def as_target(self, url: str) -> Target:
        """The section ``target`` of a soak's config, at another address if need be."""
        return Target(
            url=url,
            api_key_env=self.api_key_env,
            api_key_file=self.api_key_file,
            allow_load=self.allow_load,
            shared=self.shared,
            disruptive=self.disruptive,
        )


class Limits(Section):
    """Of answers that ended in one phase: the share that was no answer, and the time to the first token."""

    error_share: Share | None = None
    ttft_p99: Seconds | None = None


class Hypothesis(Limits):
    """The steady state. Its own limits are for the times without an action in force and its cool-down.

    during: for the rest. verdict: CLEAN, or NOT-CORRUPT where the run is too short to be calibrated.
    """

    verdict: Literal["CLEAN", "NOT-CORRUPT"] = "NOT-CORRUPT"
    during: Limits = Field(default_factory=Limits)


class StopWhen(Section):
    """When no further action begins and what is in force is undone. gone: without a server for so long."""

    error_share: Share | None = 0.9
    answers: Annotated[int, Field(ge=1, le=100_000)] = 20
    gone: Seconds | None = None
    corrupt: bool = True


class BlastRadius(Section):
    """at_once: on so many targets at most is something that others can feel in force at one time."""

    at_once: Annotated[int, Field(ge=1, le=1000)] = 1


class Experiment(Section):
    """A whole experiment. soaked: the target that load and probes go to; soak: sections of a soak's config.

    before: load without any action, for the steady state and for prefixes to be remembered; cool_down: after
    an action, before what is seen counts as steady again; witnesses: prefixes planted and asked about again.
    """

    experiment: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    about: str = ""
    seed: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    targets: Annotated[dict[str, ChaosTarget], Field(min_length=1)]
    soaked: str = "server"
    soak: dict[str, Any] = Field(default_factory=dict)
    hypothesis: Hypothesis = Field(default_factory=Hypothesis)
    actions: Annotated[tuple[AnyStep, ...], Field(min_length=1, max_length=200)]
    stop_when: StopWhen = Field(default_factory=StopWhen)
    blast_radius: BlastRadius = Field(default_factory=BlastRadius)
    cool_down: Seconds = 10.0
    witnesses: Annotated[int, Field(ge=1, le=256)] = 6
    witness_tokens: Annotated[int, Field(ge=64, le=16384)] = 300
    afterwards: tuple[str, ...] = ("serves", "old-prefixes-true")

    @model_validator(mode="after")
    def _of_what_is_named(self) -> Experiment:
        if self.soaked not in self.targets:
            raise ValueError(f"soaked: no target {self.soaked!r}; there are {', '.join(self.targets)}")
        for place, step in enumerate(self.actions):
            for name in targets_of(step, self.soaked):
                self._may(place, step, name)
        for name in self.afterwards:
            if name not in POST_CONDITIONS:
                raise ValueError(
                    f"afterwards: no such condition {name!r}; there are {', '.join(POST_CONDITIONS)}"
                )
        if "target" in self.soak or self.soak.get("load") == "none":
            raise ValueError("soak: its target is the one that `soaked` names, and it needs load of its own")
        return self

    def _may(self, place: int, step: AnyStep, name: str) -> None:
        where, target = f"actions.{place}", self.targets.get(name)
        if target is None:
            raise ValueError(
                f"{where}.target: no target {name!r}; only targets that the file names are ever touched: "
                f"{', '.join(self.targets)}"
            )
        if step.do in deed.OF_THE_NETWORK and name != self.soaked:
            raise ValueError(f"{where}.target: only the way to {self.soaked!r} goes through our proxy")
        sends_prompts = step.do in (deed.RETRACTION, deed.PRESSURE, deed.ABORT_STORM)
        if sends_prompts and name != self.soaked:
            raise ValueError(f"{where}.target: prompts of ours go to {self.soaked!r} alone")
        if step.hurts and not target.disruptive:
            raise ValueError(
                f"{where}: everybody who uses {target.url} would feel {step.do}: set "
                f"targets.{name}.disruptive: true, or leave it out"
            )
        for command in NEEDS.get(step.do, ()):
            if not getattr(target, command):
                raise ValueError(
                    f"{where}: {step.do} wants the command targets.{name}.{command}, an argv list such as "
                    '["systemctl", "restart", "sglang"]'
                )

    @property
    def proxied(self) -> bool:
        """Whether the soaked target is reached through our proxy."""
        return any(step.do in deed.OF_THE_NETWORK for step in self.actions)

    def config(self, duration_s: float) -> Config:
        """The soak's config, on the target itself. Raises ConfigError."""
        target = self.targets[self.soaked]
        slowest = max(t.ready_within for t in self.targets.values())
        sections = {name: dict(section) for name, section in self.soak.items()}
        run, stop = sections.setdefault("run", {}), sections.setdefault("stop", {})
        run.update(duration=duration_s, seed=self.seed)
        stop.setdefault("lost_after", slowest + 30.0)
        sections["target"] = target.as_target(target.url).model_dump(mode="json")
        try:
            return build(sections)
        except ConfigError as error:
            raise ConfigError("\n".join(f"soak.{line}" for line in str(error).splitlines())) from None


def load(path: Path, over: dict[str, Any] | None = None, url: str | None = None) -> Experiment:
    """Read an experiment and lay the command line's values over it. Raises ConfigError.

    url: of the target that is soaked, where it is not the file's.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a mapping with experiment, targets and actions is wanted")
    values = _laid_over(values, over or {})
    if url is not None:
        soaked = str(values.get("soaked", Experiment.model_fields["soaked"].default))
        values = _laid_over(values, {"targets": {soaked: {"url": url}}})
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_line(e)}" for e in error.errors(include_url=False))) from None


def _laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    laid = dict(base)
    for key, value in over.items():
        below = laid.get(key)
        laid[key] = _laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return laid


def _line(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{path}: no such key"
    if error["type"] == "union_tag_invalid":
        return f"{path}.do: there is no action {error['ctx']['tag']!r}; there are {', '.join(deed.NAMES)}"
    return message if error["type"] == "value_error" and not path else f"{path}: {message}"


__all__ = ["POST_CONDITIONS", "ChaosTarget", "Experiment", "load"]
