"""A whole config: its sections, and the rules between them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from soak.config.detect import Detect
from soak.config.grafana import Grafana
from soak.config.journal import Journal
from soak.config.limits import Budget, Stop, Thresholds
from soak.config.metrics import Metrics
from soak.config.mistake import ConfigError
from soak.config.planting import PART, USUAL, planted_per_second
from soak.config.probe import Probe
from soak.config.run import Run
from soak.config.target import Target
from soak.config.text import in_text
from soak.config.traffic import ROOM, SMALLEST, Load
from soak.config.values import Section
from soak.detect.run_length import run_length_for, run_length_words
from soak.plan.geometry import Geometry
from soak.plan.shapes import (
    DISRUPTIVE,
    SHAPES,
    canary,
    chunked_burst,
    co_batched,
    identical,
    planted,
    servable,
)
from soak.plan.spec import Adaptive, ResolvedSpec

_IN_FLIGHT = 256  # prompts at once where no budget says otherwise


class Config(Section):
    """A whole run."""

    target: Target = Field(default_factory=Target)
    run: Run = Field(default_factory=Run)
    load: Load = Field(default_factory=Load)
    probe: Probe = Field(default_factory=Probe)
    budget: Budget = Field(default_factory=Budget)
    stop: Stop = Field(default_factory=Stop)
    detect: Detect = Field(default_factory=Detect)
    thresholds: Thresholds = Field(default_factory=Thresholds)
    metrics: Metrics = Field(default_factory=Metrics)
    grafana: Grafana = Field(default_factory=Grafana)
    journal: Journal = Field(default_factory=Journal)

    @field_validator("load", mode="before")
    @classmethod
    def _load_none(cls, value: Any) -> Any:
        return {"shapes": {}} if value == "none" else value

    @model_validator(mode="after")
    def _without_load_there_is_no_share_of_it(self) -> Config:
        stated = "probe_share" in self.budget.model_fields_set
        if self.load.none and stated and self.budget.probe_share is not None:
            raise ValueError(
                "budget.probe_share: with load: none there is no load to take a share of; "
                "pool_share_per_minute and tokens_per_second limit probes"
            )
        return self

    @property
    def probe_share(self) -> float | None:
        """Share of our own prefill that probes may take, None without limit or without load."""
        return None if self.load.none else self.budget.probe_share

    @property
    def shared(self) -> bool:
        """Whether other people's traffic runs beside ours."""
        return self.target.shared or self.load.none

    @property
    def spec_shapes(self) -> frozenset[str]:
        """The shapes of which this run sends anything."""
        if self.load.none:
            return frozenset({planted.NAME})
        return frozenset(name for name, weight in self.load.shapes.items() if weight)

    @model_validator(mode="after")
    def _load_is_never_an_accident(self) -> Config:
        if self.target.loopback:
            return self
        if not self.target.allow_load:
            raise ValueError(
                f"target.allow_load: {self.target.url} is not this machine, so load on it must be allowed "
                "in words: set target.allow_load: true"
            )
        unstated = [k for k in ("in_flight", "tokens_per_second") if getattr(self.budget, k) is None]
        if unstated:
            raise ValueError(
                f"budget.{unstated[0]}: {self.target.url} is not this machine, so a budget must be stated: "
                "set budget.in_flight and budget.tokens_per_second"
            )
        return self

    @model_validator(mode="after")
    def _nobody_is_disrupted_by_accident(self) -> Config:
        for name, weight in self.load.shapes.items():
            if weight and name in DISRUPTIVE and not self.target.disruptive:
                raise ValueError(
                    f"load.shapes.{name}: it fills the pool of {self.target.url} and pushes out whatever "
                    "else is cached or running there: set target.disruptive: true, or give it no weight"
                )
        return self

    @model_validator(mode="after")
    def _run_length_is_one(self) -> Config:
        try:
            _ = self.run_length
        except ValueError as error:
            raise ValueError(f"detect.{error}") from None
        return self

    @property
    def run_length(self) -> float:
        """A, in probes: as stated, or such that the fleet keeps to its false alarms at the highest rate."""
        per_year = self.detect.false_alarms_per_year
        if per_year is None:
            return self.detect.run_length
        return run_length_for(per_year, self.detect.fleet_size, self.probe.rate)

    @property
    def run_length_words(self) -> str:
        """Where A comes from, empty if it was stated."""
        per_year = self.detect.false_alarms_per_year
        if per_year is None:
            return ""
        return run_length_words(per_year, self.detect.fleet_size, self.probe.rate)

    @property
    def pool_share_per_minute(self) -> float | None:
        """Share of the server's pools that probes may fill a minute, or None without limit."""
        if "pool_share_per_minute" in self.budget.model_fields_set:
            return self.budget.pool_share_per_minute
        return 0.02 if self.shared else 0.5

    @property
    def probes_pool_share(self) -> float | None:
        """The part of ``pool_share_per_minute`` that probes may take: all that is not planted."""
        share = self.pool_share_per_minute
        return share if share is None or not self.load.none else (1 - PART) * share

    @model_validator(mode="after")
    def _bursts_fit_the_budget(self) -> Config:
        most, burst = self.budget.in_flight, self.load.burst
        bursts = (chunked_burst.NAME, co_batched.NAME, identical.NAME, canary.NAME)
        if most is not None and most < burst and any(self.load.shapes.get(name) for name in bursts):
            raise ValueError(
                f"budget.in_flight: given {most}; a burst of load.burst ({burst}) prompts would pass it: "
                "raise it, or lower load.burst"
            )
        return self

    @model_validator(mode="after")
    def _decisions_can_be_kept(self) -> Config:
        if self.load.adaptive is None:
            return self
        if not self.journal.enabled:
            raise ValueError(
                "load.adaptive: its decisions are kept in the journal, without which the run could not be "
                "replayed: set journal.enabled: true"
            )
        if self.run.shards > 1:
            raise ValueError(
                "load.adaptive: a decision is one process's, and the shards of one plan would take others "
                "each: drive it with one shard"
            )
        return self

    def _adaptive(self) -> Adaptive | None:
        wanted = self.load.adaptive
        if wanted is None:
            return None
        # a probe may be a batch of four
        prompts = max(1, (self.budget.in_flight or _IN_FLIGHT) - 4 * self.probe.concurrency)
        return Adaptive(every=wanted.every, together=min(wanted.together, prompts), prompts=prompts)

    def resolve(self, geometry: Geometry) -> ResolvedSpec:
        """The plan's spec: this config's load, on that geometry. Raises ConfigError if it does not fit."""
        load = self.load
        if load.text is not None:
            geometry = in_text(geometry, load.text)
        limit = geometry.context_len - 1
        if limit < max(SMALLEST, ROOM * load.min_prompt):
            raise ConfigError(
                f"load.min_prompt: given {load.min_prompt}; the server takes {limit} tokens, prompt and "
                f"output together: at least {SMALLEST} are wanted, and {ROOM} times min_prompt"
            )
        if load.none:
            longest = min(load.max_context or USUAL, limit)
            return ResolvedSpec(
                geometry=geometry,
                arrivals="constant",
                rate=planted_per_second(geometry, longest, self.pool_share_per_minute),
                weights=((planted.NAME, 1),),
                max_context=longest,
                min_prompt=load.min_prompt,
                decode_tokens=load.decode_tokens,
            )
        weights = {name: load.shapes.get(name, 0) * servable(name, geometry) for name in SHAPES}
        if not any(weights.values()):
            raise ConfigError(
                f"load.shapes: this server can be asked none of {', '.join(sorted(self.spec_shapes))}: an "
                "adapter, a grammar or a host tier is wanted, and it says that it has none; add another shape"
            )
        return ResolvedSpec(
            geometry=geometry,
            arrivals=load.arrivals,
            rate=repr(load.rate),
            weights=tuple(weights.items()),
            max_context=min(load.max_context or limit, limit),
            min_prompt=load.min_prompt,
            max_new_tokens=load.max_new_tokens,
            decode_tokens=load.decode_tokens,
            burst=load.burst,
            roots=load.roots,
            zipf_churn=load.zipf_churn,
            sampled_per_mille=round(load.sampled_share * 1000),
            served_per_mille=round(load.served_share * 1000),
            tenants=load.tenants,
            pressure=min(load.pressure, self.budget.in_flight or load.pressure),
            adaptive=self._adaptive(),
        )
