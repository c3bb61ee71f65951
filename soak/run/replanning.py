"""Is this the config of the run that is to be repeated? Compares; only the preflight's questions are sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from soak.config import Config, ConfigError
from soak.incident.about import spec_differences, spec_digest
from soak.run.connecting import client_for, refuse_if_busy, unless_stopped
from soak.run.identity import identify
from soak.sglang.preflight import examine

_MOST_BYTES = 1 << 20


def read_run(path: Path) -> dict[str, Any]:
    """A run.json. Raises ConfigError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: too large for a run.json")
        said = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; a run's folder holds one") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    wanted = {"run_id": str, "seed": int, "nonce": int, "spec": dict, "spec_digest": str}
    if not isinstance(said, dict) or any(type(said.get(name)) is not kind for name, kind in wanted.items()):
        raise ConfigError(f"{path}: not a run.json: {', '.join(wanted)} are wanted")
    return said


def refuse_other_seed(given: int | None, seed: int, what: str) -> None:
    """Raises ConfigError where a seed was given that is not the one of what is replayed."""
    if given is not None and given != seed:
        raise ConfigError(f"--seed {given}: {what} is of seed {seed}")


async def refuse_other_plan(config: Config, run: dict[str, Any], stop: asyncio.Event) -> None:
    """Raises ConfigError, with the differences, where config and server make another plan than the run's."""
    async with client_for(config) as client:
        target = await unless_stopped(examine(client), stop)
        refuse_if_busy(config, target)
    spec = config.resolve(target.geometry)
    if spec.digest() == run["spec_digest"]:
        return
    if spec_digest(run["spec"]) != run["spec_digest"]:
        raise ConfigError("the run's spec does not have the digest it names: the file was changed")
    lines = spec_differences(run["spec"], spec.as_dict())
    ours = identify(config.run.seed, run["nonce"], spec).run_id
    raise ConfigError(
        f"this config on this server plans run {ours}, not {run['run_id']}; what differs, then and now:\n"
        + "\n".join(f"  {line}" for line in lines)
    )
