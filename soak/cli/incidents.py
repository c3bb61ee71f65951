"""``soak incidents``: list what alarms have left in a journal, explain one, hand one on as a folder."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from soak.cli.journals import journal_file, journal_options
from soak.config import ConfigError
from soak.export.gone_words import gone_words
from soak.export.incident_words import heading, incident_words, without_trace
from soak.export.telling import told_of
from soak.incident import target_lost
from soak.incident.bundle import write_bundle
from soak.incident.folder import BundleError
from soak.incident.incident import Incident
from soak.incident.journal_file import JournalUnusable
from soak.incident.journal_ids import TraceUnavailable
from soak.incident.journal_reader import JournalReader, UnknownIncident
from soak.incident.rebuild import read_incident
from soak.run.exit_code import ExitCode
from soak.store.alarms import utc
from soak.store.database import StateUnusable, Store

_REFUSED = (ConfigError, JournalUnusable, UnknownIncident, TraceUnavailable, StateUnusable, BundleError)


def _fail(error: Exception) -> NoReturn:
    click.echo(str(error), err=True)
    sys.exit(ExitCode.USAGE)


def _said(state: Path | None) -> dict[str, str]:
    """What people said of alarms, by id, where a state file is named."""
    if state is None:
        return {}
    store = Store(state, exclusive=False)
    try:
        return {stored.id: stored.said() or "not acknowledged" for stored in store.alarms()}
    finally:
        store.close()


def _row(incident: Incident, said: dict[str, str]) -> dict[str, Any]:
    alarm = incident.alarm
    return {
        "id": incident.id,
        "raised_at": incident.raised_at,
        "fingerprint": incident.fingerprint,
        **asdict(alarm),
        "verdict": alarm.verdict.value,
        "probes": list(alarm.probes),
        "probe": incident.number,
        "held_s": round(sum(high - low for low, high in incident.ranges) / 1e6, 3),
        "released_at": None if incident.released_us is None else utc(incident.released_us / 1e6),
        "note": incident.note,
        "said": said.get(incident.id),
    }


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  soak incidents --state soak-state.sqlite
  soak incidents show 3fa9c1d2 --state soak-state.sqlite
  soak incidents export 3fa9c1d2 incident-3fa9c1d2 --out soak-runs/20261201T080000Z""",
)
@journal_options
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@click.pass_context
def command(
    ctx: click.Context, *, state: Path | None, out: Path | None, journal: Path | None, as_json: bool
) -> None:
    """List incidents, oldest first; `show ID` explains one, `export ID DIR` makes a folder to hand on.

    Without an option, of the newest run in soak-runs.
    """
    ctx.obj = (state, out, journal)
    if ctx.invoked_subcommand is not None:
        return
    try:
        reader = JournalReader(journal_file(state, out, journal))
        try:
            found, said = reader.incidents(), _said(state)
        finally:
            reader.close()
    except _REFUSED as error:
        _fail(error)
    if as_json:
        click.echo(json.dumps([_row(incident, said) for incident in found], indent=2))
        return
    lines = [heading(incident, said.get(incident.id, "")) for incident in found]
    click.echo("\n".join(lines) or f"no incident in {reader.path}")


def _named(ctx: click.Context, *given: Path | None) -> tuple[Path | None, ...]:
    """The options of the subcommand, or those before it."""
    return given if any(given) else tuple(ctx.obj)


@command.command(
    epilog="""\b
Examples:
  soak incidents show 3fa9c1d2
  soak incidents show 3fa9c1d2 --out soak-runs/20261201T080000Z"""
)
@click.argument("id")
@journal_options
@click.pass_context
def show(ctx: click.Context, *, id: str, state: Path | None, out: Path | None, journal: Path | None) -> None:
    """Explain an incident: what was asked, how far off, what had happened, how to replay it."""
    state, out, journal = _named(ctx, state, out, journal)
    try:
        reader = JournalReader(journal_file(state, out, journal))
        try:
            click.echo(explained(reader, id, _said(state)))
        finally:
            reader.close()
    except _REFUSED as error:
        _fail(error)


def explained(reader: JournalReader, name: str, said: dict[str, str]) -> str:
    """The words of ``show``. Raises UnknownIncident, JournalUnusable."""
    incident = reader.incident(name)
    try:
        return incident_words(told_of(reader, incident, said.get(incident.id, "")))
    except TraceUnavailable as error:
        if target_lost.is_one(incident):
            lost = target_lost.under_way(incident, reader.prompts(incident.ranges))
            seed = reader.session(lost[0].session).seed if lost else None
            return gone_words(incident, lost, seed)
        return without_trace(incident, str(error), said.get(incident.id, ""))


@command.command(
    epilog="""\b
Examples:
  soak incidents export 3fa9c1d2 incident-3fa9c1d2 --state soak-state.sqlite"""
)
@click.argument("id")
@click.argument("folder", type=click.Path(path_type=Path))
@journal_options
@click.pass_context
def export(
    ctx: click.Context,
    *,
    id: str,
    folder: Path,
    state: Path | None,
    out: Path | None,
    journal: Path | None,
) -> None:
    """Write an incident as a folder of plain files that `soak replay --bundle` takes anywhere."""
    state, out, journal = _named(ctx, state, out, journal)
    try:
        reader = JournalReader(journal_file(state, out, journal))
        try:
            write_bundle(folder, *read_incident(reader, id))
        finally:
            reader.close()
    except _REFUSED as error:
        _fail(error)
    click.echo(
        f"written: {folder}; replay it with: {shlex.join(['soak', 'replay', '--bundle', str(folder)])}"
    )
