"""The section ``detect``: how sure the detectors must be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from soak.config.values import Section


class Detect(Section):
    """The detectors' settings. The run length is stated, or follows from false_alarms_per_year."""

    p0_max: Annotated[float, Field(ge=1e-4, le=0.5)] = 0.2
    """How rare an exceedance of the threshold must be bounded to before evidence counts. Lower sees rarer
    faults and takes more controls.
    """
    run_length: Annotated[float, Field(ge=100, le=1e12)] = 1e6
    """A: the least average number of probes to a false alarm of the evidence."""
    false_alarms_per_year: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """States A the other way round: for the whole fleet, at the highest probe rate there can be."""
    fleet_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Soaks that ``false_alarms_per_year`` is shared among."""
    max_abs_d: Annotated[float, Field(gt=0)] | None = None
    """Declared bound on |warm - cold| of one token, in nats, by who knows the server's precision. null: none.
    """
    min_valid_probes: Annotated[int, Field(ge=1)] = 20
    """Valid probes without which no run is CLEAN."""
    require_coverage: tuple[str, ...] | None = None
    """Conjunctions without which no run is CLEAN. null: those that the chosen shapes can reach on this
    server.
    """

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
