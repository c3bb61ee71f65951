"""Values that several sections take: durations, shares, and the model that refuses unknown keys."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MANY = 1 << 62


def duration_s(value: object) -> float:
    """Seconds from 90, "90", "90s", "1.5h", "2d". Raises ValueError in words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            raise ValueError("a duration such as 90s, 10m, 1.5h or 2d is wanted")
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if not 0 < seconds < 1e9:
        raise ValueError("a duration above 0 is wanted")
    return seconds


Seconds = Annotated[float, BeforeValidator(duration_s)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Part of the YAML file. An unknown key is a mistake, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """YAML reads ``yes`` and ``on`` as true, which Python would take for 1."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and wanted is not bool:
            raise ValueError(f"{'yes' if value else 'no'} is no value for it")
        return value
