"""Going on with a run that was killed: the same plan under the same nonce, from the first index not begun.

What the dead process left on the server is taken back first, by exact rid, since SGLang heeds no other.
Nothing of it is guessed: what does not fit together is refused in words.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from soak.config import Config, ConfigError
from soak.export.summary import SUMMARY_NAME
from soak.incident.about import spec_differences
from soak.incident.journal_file import JournalUnusable, journal_path
from soak.incident.journal_reader import JournalReader
from soak.plan.shapes import pause_queue
from soak.run.exit_code import ExitCode
from soak.run.identity import Identity
from soak.run.replanning import read_run
from soak.run.trail import Left, read_trail
from soak.sglang.client import SGLangClient
from soak.sglang.server_metrics import LOADS, parse_loads
from soak.sglang.session import rid_of

_SETTLE_S = 10.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Earlier:
    """The run that is gone on with. run: its run.json."""

    run: dict[str, Any]
    left: Left

    @property
    def nonce(self) -> int:
        """What salts its token ids."""
        return int(self.run["nonce"])

    def refuse_another(self, identity: Identity) -> None:
        """Raises ConfigError where config and server now make another plan."""
        if identity.run_id == self.run["run_id"]:
            return
        lines = spec_differences(self.run["spec"], identity.spec.as_dict())
        if identity.seed != self.run["seed"]:
            lines.insert(0, f"seed: {self.run['seed']} -> {identity.seed}")
        raise ConfigError(
            f"--resume: this config on this server plans run {identity.run_id}, not {self.run['run_id']}; "
            "what differs, then and now:\n" + "\n".join(f"  {line}" for line in lines)
        )

    def first_index(self, config: Config, out: Path) -> int:
        """The first index that nobody has begun, by the trail and by the journal. Raises ConfigError."""
        path = config.journal.path or journal_path(config.run.state, out)
        if not config.journal.enabled or not path.exists():
            return self.left.index + 1
        try:
            journal = JournalReader(path)
        except JournalUnusable as error:
            raise ConfigError(f"journal.path: {error}") from error
        try:
            journalled = journal.next_index(self.run["run_id"], config.run.shard, config.run.shards)
        finally:
            journal.close()
        return max(self.left.index + 1, journalled)

    async def take_back(self, client: SGLangClient, *, settle: bool = True) -> int:
        """Abort all that the dead process may have left, and end its pause; how many aborts the server took.

        settle: wait a moment for the server to be idle. Unknown rids cost it nothing.
        """
        left = self.left
        if pause_queue.NAME in self.run["spec"].get("weights", {}):
            await client.continue_()  # it may have died with the server paused
        taken = await client.abort_all_of(rid_of(left.session, serial) for serial in left.rids)
        deadline = time.monotonic() + _SETTLE_S
        while settle and left.rids and time.monotonic() < deadline:
            _, value, _ = await client.get_json(LOADS)
            seen = parse_loads(value)
            if seen is None or not (seen.running or seen.queued):
                break
            await asyncio.sleep(_LOOK_S)
        return taken


def earlier(config: Config, out: Path) -> Earlier | None:
    """The run in that folder, None where there was none yet. Raises ConfigError."""
    if config.run.state is None:
        raise ConfigError(
            "run.state: a run without a state file has kept no evidence and no alarms to go on with; name "
            "one from the start, with --state FILE or in the config"
        )
    if not (out / "run.json").exists():
        return None
    found = Earlier(read_run(out / "run.json"), read_trail(out))
    if found.left.run_id != found.run["run_id"]:
        raise ConfigError(f"{out}: run.json and trail.json are of different runs; name another --out")
    _refuse_whole(out)
    return found


def _refuse_whole(out: Path) -> None:
    """Raises ConfigError for a run that came to its end: going on would write nothing over its summary."""
    path = out / SUMMARY_NAME
    try:
        summary = orjson.loads(path.read_bytes())
        whole = not summary["interrupted"] and summary["exit_code"] != ExitCode.TARGET
    except FileNotFoundError:
        return
    except (OSError, orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise ConfigError(f"{path}: not the summary of a run: {error}") from error
    if whole:
        raise ConfigError(
            f"{out}: that run has come to its end, see {path}; name another --out for a new one"
        )
