"""``soak ack``: a person has seen an alarm. In a state file, or at a running soak."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from soak.cli.alarms import words
from soak.cli.reach import DEFAULT_URL, NotReached, alarms_at
from soak.config import ConfigError
from soak.run.exit_code import ExitCode
from soak.store.database import StateUnusable, UnknownAlarm


@click.command(
    epilog="""\b
Examples:
  soak ack 3fa9c1d2 --state soak-state.sqlite
  soak ack 3fa9c1d2 --known stale-track-rows
  soak ack 3fa9c1d2 --until 8h --by ada --url http://127.0.0.1:9464 --token-file token"""
)
@click.argument("id")
@click.option("--known", metavar="FAULT", help="Mute as a known fault; `soak sim --list-faults` names them.")
@click.option("--until", metavar="TIME", help="Mute until 2026-12-01T08:00Z, or for a time such as 8h.")
@click.option("--by", metavar="NAME", help="Who says so.")
@click.option("--state", type=click.Path(path_type=Path), help="A state file, whether or not a soak runs.")
@click.option("--url", help=f"A running soak, at the address of its metrics.  [default: {DEFAULT_URL}]")
@click.option("--token-file", type=click.Path(path_type=Path), help="Its token, instead of SOAK_TOKEN.")
def command(
    *,
    id: str,
    known: str | None,
    until: str | None,
    by: str | None,
    state: Path | None,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Acknowledge an alarm: the evidence of its stream starts afresh, and it stands no more.

    With --known or --until it stands, and its evidence goes on and is exported, but it sends no page, nor
    does any other alarm of that stream, until the server's fingerprint changes or the time has passed.
    """
    given = {"known": known, "until": until, "by": by}
    try:
        row = alarms_at(state, url, token_file).acknowledge(
            id, {key: value for key, value in given.items() if value is not None}
        )
    except (NotReached, ConfigError, StateUnusable, UnknownAlarm, ValueError) as error:
        click.echo(str(error), err=True)
        sys.exit(ExitCode.USAGE)
    click.echo(words(row))
