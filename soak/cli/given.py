"""What the command line gives, as values of a config."""

from __future__ import annotations

from typing import Any

from soak.config import ConfigError


def overrides(**given: Any) -> dict[str, Any]:
    """Command-line values as the sections of a config, keys as section__name; None was not given."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        if value is not None:
            section, name = key.split("__")
            values.setdefault(section, {})[name] = value
    return values


def shard_pair(text: str) -> tuple[int, int]:
    """(index, count) of "1/4". Raises ConfigError."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--shard {text}: a pair such as 0/4 is wanted")
    return int(parts[0]), int(parts[1])
