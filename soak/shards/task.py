"""What one shard is told to do: plain data that travels to another process, or to another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from soak.config import Config
from soak.sglang.preflight import Target


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard of a run. target: its server, looked at beforehand; resume: go on with what is in ``out``."""

    config: Config
    out: Path
    target: Target
    command: str
    resume: bool = False

    @property
    def number(self) -> int:
        """Which of the shards."""
        return self.config.run.shard

    def again(self) -> ShardTask:
        """The same, to be gone on with from its journal."""
        return replace(self, resume=True)


def folder_of(out: Path, shard: int, shards: int) -> Path:
    """Where a shard keeps its files, inside the folder of the run."""
    return out / f"shard-{shard}-of-{shards}"


def state_of(state: Path | None, out: Path, shard: int, shards: int) -> Path:
    """The state file of one shard: beside the one that was named, else in the shard's own folder.

    Evidence is of one shard of so many: with another number of shards it begins anew.
    """
    if state is None:
        return folder_of(out, shard, shards) / "state.sqlite"
    return state.with_name(f"{state.stem}.shard-{shard}-of-{shards}{state.suffix}")


def tasks(config: Config, out: Path, targets: Sequence[Target], command: str) -> list[ShardTask]:
    """One task a shard. config: of the whole run, its nonce drawn; targets: one for each of its addresses."""
    shards = config.run.shards
    made = []
    for shard in range(shards):
        run = config.run.model_copy(
            update={"shard": shard, "state": state_of(config.run.state, out, shard, shards), "report": False}
        )
        journal = config.journal
        if journal.path is not None:
            name = f"{journal.path.stem}.shard-{shard}-of-{shards}{journal.path.suffix}"
            journal = journal.model_copy(update={"path": journal.path.with_name(name)})
        metrics = config.metrics.model_copy(
            update={"port": None if config.metrics.port is None else 0, "host": "127.0.0.1"}
        )
        made.append(
            ShardTask(
                config=config.model_copy(update={"run": run, "metrics": metrics, "journal": journal}),
                out=folder_of(out, shard, shards).resolve(),
                target=targets[shard % len(targets)],
                command=command,
            )
        )
    return made
