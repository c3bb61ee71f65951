"""The first look at every server of a run, once for all shards, before any of them sends load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from soak.config import Config, ConfigError
from soak.run.connecting import client_for, refuse_if_busy
from soak.run.identity import Identity, identify
from soak.run.replanning import read_run
from soak.run.server_record import ServerRecord
from soak.run.trail import PreflightTrail
from soak.sglang.preflight import Target, TargetUnusable, examine


async def look_at_all(config: Config, preflight: PreflightTrail, say: Callable[[str], None]) -> list[Target]:
    """One target for each address, in their order.

    Raises TargetUnusable for one that cannot be soaked, is busy, or would be planned for otherwise than the
    first one; ConfigError.
    """
    record = ServerRecord.of(config)
    targets: list[Target] = []
    for url in config.target.urls:
        here = config.model_copy(
            update={"target": config.target.model_copy(update={"url": url, "replicas": ()})}
        )
        async with client_for(here) as client:
            await preflight.take_back(client)
            target = record.join(await examine(client, on_sending=preflight.sending))
        preflight.over()
        refuse_if_busy(here, target)
        for note in target.notes:
            say(note)
        targets.append(target)
    first, *others = targets
    for other in others:
        if config.resolve(other.geometry).digest() != config.resolve(first.geometry).digest():
            raise TargetUnusable(
                f"{other.url} has another geometry than {first.url}: one plan cannot be made for both. Soak "
                "them in runs of their own"
            )
        differs = first.fingerprint.differences(other.fingerprint)
        if differs:
            say(f"{other.url} is not quite like {first.url}: {'; '.join(differs)}")
    return targets


def whole_identity(config: Config, out: Path, targets: Sequence[Target], *, resume: bool) -> Identity:
    """Seed, nonce and spec of the run: those of the one in ``out`` if that is gone on with.

    Raises ConfigError.
    """
    spec = config.resolve(targets[0].geometry)
    path = out / "run.json"
    if not (resume and path.exists()):
        return identify(config.run.seed, config.run.nonce, spec)
    earlier = read_run(path)
    identity = identify(config.run.seed, int(earlier["nonce"]), spec)
    if identity.run_id != earlier["run_id"]:
        raise ConfigError(
            f"--resume: this config plans run {identity.run_id}, not {earlier['run_id']} of {path}: seed, "
            "load and server must be what they were"
        )
    return identity
