"""The section ``run``: how long, from which seed, and what outlives it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from soak.config.values import Seconds, Section


class Run(Section):
    """How long, from which seed, which share of the plan, and the file that outlives it."""

    duration: Seconds = 600.0
    """How long load is sent."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    """The same seed and resolved spec plan the same load, byte for byte."""
    nonce: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    """Salts token ids, so that a second run finds nothing that the first left in the cache. null: a fresh
    one.
    """
    shard: Annotated[int, Field(ge=0)] = 0
    """Which of ``shards`` this process is: it drives the plan's indices congruent to it."""
    shards: Annotated[int, Field(ge=1, le=4096)] = 1
    """How many processes share one plan."""
    drain: Seconds = 15.0
    """How long after the end answers are waited for, before what is left is aborted."""
    state: Path | None = None
    """SQLite file in which evidence, calibration and alarms outlive the run. null: they end with it."""

    report: bool = True
    """Whether report.html is made in the run's folder at its end; it takes matplotlib (soak[report])."""

    @model_validator(mode="after")
    def _shard_exists(self) -> Run:
        if self.shard >= self.shards:
            raise ValueError(f"shard {self.shard}: with {self.shards} shards it is 0 to {self.shards - 1}")
        return self
