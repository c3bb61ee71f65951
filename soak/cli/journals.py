"""Which journal a command is about: the same options for every command that reads one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from soak.config import ConfigError
from soak.export.course_file import COURSE_NAME
from soak.export.summary import SUMMARY_NAME
from soak.incident.journal_file import JOURNAL_NAME, journal_path

F = TypeVar("F", bound=Callable[..., Any])

RUNS = Path("soak-runs")


def journal_options(command: F) -> F:
    """--state, --out and --journal, as arguments ``state``, ``out`` and ``journal`` of the command."""
    path = click.Path(path_type=Path)
    command = click.option("--journal", type=path, help="A journal by its own path (journal.path).")(command)
    command = click.option("--out", type=path, help="Folder of a run.")(command)
    return click.option("--state", type=path, help="State file of a run; its journal lies beside it.")(
        command
    )


def journal_file(state: Path | None, out: Path | None, journal: Path | None) -> Path:
    """The journal that the options name; without any, that of the newest run in soak-runs.

    Raises ConfigError if there is none.
    """
    if sum(given is not None for given in (state, out, journal)) > 1:
        raise ConfigError("--state, --out and --journal each name a journal: give one of them")
    if journal is not None:
        return journal
    if out is not None and not (out / JOURNAL_NAME).exists():
        return _where_it_says(out) or journal_path(None, out)
    if state is not None or out is not None:
        return journal_path(state, out or Path())
    found = sorted(RUNS.glob(f"*/{JOURNAL_NAME}"), key=lambda path: path.parent.name)
    if not found:
        raise ConfigError(
            f"no journal in {RUNS}/*/: name the run's --state FILE or --out DIR, or its --journal FILE"
        )
    return found[-1]


def _where_it_says(out: Path) -> Path | None:
    """Where a run that kept its journal elsewhere says it is; None where nothing says so.

    A run that was killed has left no summary but the one of its last save.
    """
    for name, inside in ((SUMMARY_NAME, False), (COURSE_NAME, True)):
        try:
            said = json.loads((out / name).read_bytes())
            return Path((said["summary"] if inside else said)["journal"]["path"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
