"""``soak init URL``: ask a server who it is, by GETs alone, and write a commented config for it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import yaml

from soak import config as configs
from soak.cli.stoppable import explain, fail, run_stoppable
from soak.export.patience import Patience
from soak.run.connecting import client_for, unless_stopped
from soak.run.exit_code import ExitCode
from soak.run.first_config import first_config
from soak.sglang.preflight import Target, examine

_ALLOWED = {"allow_load": True}
_BUDGET = {"in_flight": 32, "tokens_per_second": 20_000.0}


def _asking(url: str, key_env: str | None, key_file: Path | None) -> configs.Config:
    """A config that is only looked with."""
    target: dict[str, object] = {"url": url, **_ALLOWED}
    if key_env is not None:
        target["api_key_env"] = key_env
    if key_file is not None:
        target["api_key_file"] = key_file
    return configs.build({"target": target, "budget": _BUDGET})


async def _ask(config: configs.Config, stop: asyncio.Event) -> Target:
    async with client_for(config) as client:
        return await unless_stopped(examine(client, affordable_tokens=0), stop)


def checked(text: str, target: Target) -> configs.Config:
    """The config that the text is. Raises ConfigError if it is none, or does not fit the server."""
    config = configs.build(yaml.safe_load(text))
    config.resolve(target.geometry)
    return config


@click.command(
    epilog="""\b
Examples:
  soak init http://127.0.0.1:30000
  soak init http://gpu-7:30000 --to gpu-7.yaml --api-key-env GPU7_KEY
  soak init http://127.0.0.1:30000 --to - > soak.yaml"""
)
@click.argument("url")
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    default=Path("soak.yaml"),
    show_default=True,
    help="The file to write, which must not be there yet; - for stdout.",
)
@click.option("--api-key-env", metavar="NAME", help="Variable with the server's key.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with the server's key.")
def command(*, url: str, to: Path, api_key_env: str | None, api_key_file: Path | None) -> None:
    """Write a commented config for a server, by what it says of itself.

    It is only asked, with GETs: nothing is sent to the model. What only a trial can tell is assumed;
    `soak doctor --config FILE` tries it.
    """
    stdout = str(to) == "-"
    if not stdout and to.exists():
        sys.exit(fail(ExitCode.USAGE, f"{to}: is there already and is left as it is; name another with --to"))
    try:
        asking = _asking(url, api_key_env, api_key_file)
        with Patience(sys.stderr) as patience:
            patience.now(f"asking {asking.target.url}")
            target = run_stoppable(lambda stop: _ask(asking, stop))
        text = first_config(
            target,
            loopback=asking.target.loopback,
            api_key_env=api_key_env or ("SGLANG_API_KEY" if os.environ.get("SGLANG_API_KEY") else None),
            asked_at=datetime.now(UTC).strftime("%Y-%m-%d"),
        )
        checked(text, target)
        if stdout:
            click.echo(text, nl=False)
            return
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except (asyncio.CancelledError, Exception) as error:
        sys.exit(explain(error, to, "nothing was written"))
    name = shlex.quote(str(to))
    click.echo(
        f"written: {to}\nnext:    soak doctor --config {name}\nthen:    soak run {name} --duration 10m"
    )
