"""``soak alarms``: the alarms of a state file or of a running soak, as a list for people or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from soak.cli.reach import DEFAULT_URL, NotReached, alarms_at
from soak.config import ConfigError
from soak.export.closing import printable
from soak.run.exit_code import ExitCode
from soak.store.database import StateUnusable


def words(row: dict[str, Any]) -> str:
    """One alarm in two lines. What was said of it comes from outside, hence without control characters."""
    said = {
        "no": "not acknowledged",
        "ack": f"acknowledged at {row['acked_at']}",
        "known": f"muted as the known fault {row['known_fault']}",
        "until": f"muted until {row['until']}",
    }.get(row["acked"], row["acked"])
    by = f" by {row['by']}" if row["by"] else ""
    what = f"{row['id']}  {row['verdict']} by {row['channel']} on {row['stream']}, {row['raised_at']}"
    return f"{printable(f'{what}, {said}{by}')}\n    {printable(row['evidence'])}"


@click.command(
    epilog="""\b
Examples:
  soak alarms --state soak-state.sqlite
  SOAK_TOKEN=... soak alarms --url http://127.0.0.1:9464 --all"""
)
@click.option("--state", type=click.Path(path_type=Path), help="A state file, whether or not a soak runs.")
@click.option("--url", help=f"A running soak, at the address of its metrics.  [default: {DEFAULT_URL}]")
@click.option("--token-file", type=click.Path(path_type=Path), help="Its token, instead of SOAK_TOKEN.")
@click.option("--all", "everything", is_flag=True, help="Those acknowledged for good as well.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
def command(
    *, state: Path | None, url: str | None, token_file: Path | None, everything: bool, as_json: bool
) -> None:
    """List alarms, oldest first. The first word of each is the id that `soak ack` takes."""
    try:
        rows = alarms_at(state, url, token_file).listing()
    except (NotReached, ConfigError, StateUnusable) as error:
        click.echo(str(error), err=True)
        sys.exit(ExitCode.USAGE)
    shown = [row for row in rows if everything or row["acked"] != "ack"]
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        click.echo("\n".join(words(row) for row in shown) or "no alarm stands")
