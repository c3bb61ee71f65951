"""What the command line gives, as values of a config."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import yaml

from soak.config import Config, ConfigError


def overrides(**given: Any) -> dict[str, Any]:
    """Command-line values as the sections of a config, keys as section__name; None was not given."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        if value is not None:
            section, name = key.split("__")
            values.setdefault(section, {})[name] = value
    return values


def settings(pairs: Sequence[str], over: dict[str, Any]) -> dict[str, Any]:
    """``over``, the values of other options, laid over the values of ``--set SECTION.KEY=VALUE``.

    A value is YAML, as it would stand in the file. Raises ConfigError.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        *sections, key = path.strip().split(".")
        if not (equals and sections and all(sections) and key):
            raise ConfigError(f"--set {pair}: SECTION.KEY=VALUE is wanted, such as load.rate=2")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {pair}: not YAML: {getattr(error, 'problem', error)}") from error
        place = values
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {pair}: {section} was given a value before")
        place[key] = value
    for section, given in over.items():
        values[section] = {**values.get(section, {}), **given}
    return values


def shard_pair(text: str) -> tuple[int, int]:
    """(index, count) of "1/4". Raises ConfigError."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--shard {text}: a pair such as 0/4 is wanted")
    return int(parts[0]), int(parts[1])


def nonce_from(text: str) -> int:
    """A nonce that whoever knows the text draws as well, in [0, 2^62)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 2


def with_shards(config: Config, shards: int) -> Config:
    """The config of a whole run over so many shards. Raises ConfigError where there can be one only."""
    if shards > 1 and config.load.adaptive is not None:
        raise ConfigError("load.adaptive: a decision is one process's, and several replicas need several")
    return config.model_copy(update={"run": config.run.model_copy(update={"shard": 0, "shards": shards})})
