"""The section ``run``: how long, from which seed, and what outlives it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from soak.config.values import Seconds, Section


class Run(Section):
    """How long, from which seed, which share of the plan, and the file that outlives it.

    state: SQLite file of evidence, calibration and alarms; without one they end with the run.
    """

    duration: Seconds = 600.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    nonce: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    shard: Annotated[int, Field(ge=0)] = 0
    shards: Annotated[int, Field(ge=1, le=4096)] = 1
    drain: Seconds = 15.0
    state: Path | None = None

    @model_validator(mode="after")
    def _shard_exists(self) -> Run:
        if self.shard >= self.shards:
            raise ValueError(f"shard {self.shard}: with {self.shards} shards it is 0 to {self.shards - 1}")
        return self
