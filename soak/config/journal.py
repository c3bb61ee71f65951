"""The section ``journal``: what a run writes down so that an alarm can be looked into and replayed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from soak.config.values import Seconds, Section

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]i?)?B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def size_bytes(value: object) -> int:
    """Bytes from 2000000000, "2GB", "500 MiB". Raises ValueError in words."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size such as 500MB, 2GB or 1GiB is wanted")
    return round(float(match[1]) * (_UNITS | _BINARY)[(match[2] or "").lower()])


class Journal(Section):
    """What is kept, and for how long."""

    enabled: bool = True
    """Without a journal an alarm cannot be replayed."""
    path: Path | None = None
    """The file. null: journal.sqlite beside run.state, or in the run's folder."""
    bytes: Annotated[int, BeforeValidator(size_bytes), Field(ge=1_000_000)] = 2_000_000_000
    """Size over which the oldest rows go."""
    age: Seconds = 7 * 86400.0
    """Age over which rows go."""
    window: Seconds = 600.0
    """Longest time before an alarm that its incident holds whole."""
    before: Seconds = 15.0
    """What an incident holds at least before its prefix was written and before its probe."""
    after: Seconds = 3.0
    """And after."""
