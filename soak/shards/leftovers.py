"""Requests of workers that are gone and that nobody goes on with: taken back from the server by exact rid."""

from __future__ import annotations

from collections.abc import Sequence

from soak.config import Config, ConfigError
from soak.run.connecting import client_for
from soak.run.trail import read_trail
from soak.sglang.session import rid_of
from soak.shards.task import ShardTask


async def take_back(config: Config, gone: Sequence[ShardTask]) -> int:
    """Abort all that these shards may have left running; how many aborts were taken.

    Unknown rids cost nothing. A shard that left no trail had sent nothing.
    """
    taken = 0
    for task in gone:
        try:
            left = read_trail(task.out)
        except ConfigError:
            continue
        target = config.target.model_copy(update={"url": task.target.url, "replicas": ()})
        async with client_for(config.model_copy(update={"target": target})) as client:
            taken += await client.abort_all_of(rid_of(left.session, serial) for serial in left.rids)
    return taken
