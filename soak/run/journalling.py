"""The run's journal: where it lies, what of the config goes into it, and what the run tells it.

Nothing secret reaches it: of the config only what plans, probes and limits, of the server the fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soak import __version__
from soak.config import Config, ConfigError
from soak.export.summary import public_address
from soak.incident.journal import Journal, Writes
from soak.incident.journal_file import JournalUnusable, journal_path
from soak.incident.journal_pruning import Keep
from soak.run.identity import Identity
from soak.sglang.preflight import Target

_TOLD = ("run", "load", "probe", "budget", "stop", "detect", "thresholds", "journal")


@contextmanager
def journalled(
    config: Config, target: Target, identity: Identity, out: Path, say: Callable[[str], None]
) -> Iterator[Journal | None]:
    """The journal of a run while it lasts, None where the config wants none. Raises ConfigError."""
    journal = _opened(config, target, identity, out, say)
    try:
        yield journal
    finally:
        if journal is not None:
            journal.close()


def _opened(
    config: Config, target: Target, identity: Identity, out: Path, say: Callable[[str], None]
) -> Journal | None:
    wanted = config.journal
    if not wanted.enabled:
        return None
    try:
        return Journal(
            wanted.path or journal_path(config.run.state, out),
            Writes(
                run_id=identity.run_id,
                seed=identity.seed,
                nonce=identity.nonce,
                spec=identity.spec,
                fingerprint=target.fingerprint.digest(),
                soak_version=__version__,
                target=public_address(config.target.url),
                shard=config.run.shard,
                shards=config.run.shards,
                fields=target.fingerprint.as_dict(),
                config=public_config(config),
            ),
            say,
            Keep(
                bytes=wanted.bytes,
                age_us=round(wanted.age * 1e6),
                window_us=round(wanted.window * 1e6),
                before_us=round(wanted.before * 1e6),
                after_us=round(wanted.after * 1e6),
            ),
        )
    except JournalUnusable as error:
        raise ConfigError(f"journal.path: {error}") from error


def public_config(config: Config) -> dict[str, Any]:
    """The sections that say what a run did, without those that name keys, tokens and addresses."""
    values = config.model_dump(mode="json", include=set(_TOLD))
    return {name: values[name] for name in _TOLD}
