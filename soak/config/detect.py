"""The section ``detect``: how sure the detectors must be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from soak.config.values import Section


class Detect(Section):
    """The detectors' settings. The run length is stated, or follows from false_alarms_per_year."""

    p0_max: Annotated[float, Field(ge=1e-4, le=0.5)] = 0.2
    run_length: Annotated[float, Field(ge=100, le=1e12)] = 1e6
    false_alarms_per_year: Annotated[float, Field(gt=0, le=1e9)] | None = None
    fleet_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    max_abs_d: Annotated[float, Field(gt=0)] | None = None
    min_valid_probes: Annotated[int, Field(ge=1)] = 20
    require_coverage: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_run_length(self) -> Detect:
        if self.false_alarms_per_year is None:
            if "fleet_size" in self.model_fields_set:
                raise ValueError("fleet_size: it matters only together with false_alarms_per_year")
        elif "run_length" in self.model_fields_set:
            raise ValueError(
                "false_alarms_per_year: run_length is set too, and either follows from the other: keep one"
            )
        return self
