"""``soak doctor URL``: is this a server to soak, what is known of it, and what to type next."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import click

from soak import config as configs
from soak.detect.calibration import controls_needed
from soak.doctor.finding import Report, State
from soak.doctor.look import Wanted, look
from soak.doctor.page import page
from soak.export.patience import Patience
from soak.run.exit_code import ExitCode
from soak.runners.record import RecordError, read

_CODES = {
    State.READY: ExitCode.CLEAN,
    State.UNFIT: ExitCode.CORRUPT,
    State.PARTLY: ExitCode.INCONCLUSIVE,
    State.UNUSABLE: ExitCode.TARGET,
}
_FAR_BUDGET = {"in_flight": 32, "tokens_per_second": 20_000.0}


async def _until_interrupted(wanted: Wanted) -> Report:
    """Look; SIGINT and SIGTERM end it and take back what was sent, a second one ends the process."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - for the type checker: a coroutine runs in a task

    def interrupt() -> None:
        if task.cancelling():
            os._exit(int(ExitCode.INTERRUPTED))
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    return await look(wanted)


def _config(path: Path | None, url: str | None, env: str | None, file: Path | None) -> configs.Config:
    """The config with the address put in. Without a file, one that may be looked at wherever it is."""
    target: dict[str, Any] = {"url": url} if url else {}
    if env is not None:
        target["api_key_env"] = env
    if file is not None:
        target["api_key_file"] = file
    if path is not None:
        return configs.load(path, {"target": target} if target else {})
    # off loopback a config must allow load and state a budget; this one is only looked at and priced
    return configs.build({"target": {**target, "allow_load": True}, "budget": _FAR_BUDGET})


@click.command(
    epilog="""\b
Exit codes: 0 ready, 1 something makes a soak useless or dangerous, 2 bad usage, 3 not all could be told,
4 not reached or unusable, 70 a fault of soak itself, 130 interrupted.

\b
Examples:
  soak doctor http://127.0.0.1:30000
  soak doctor http://gpu-7:30000 --allow-load
  soak doctor --config mine.yaml --json | jq .state"""
)
@click.argument("url", required=False)
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Whose load is priced, and whose target is looked at if no URL is given.",
)
@click.option("--allow-load", is_flag=True, help="Off this machine: a few requests may be sent as well.")
@click.option("--reads-only", is_flag=True, help="Send nothing but GETs, wherever the server is.")
@click.option(
    "--api-key-env", metavar="NAME", help="Variable with the server's key.  [default: SGLANG_API_KEY]"
)
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with the server's key.")
@click.option(
    "--limit", default="120s", show_default=True, metavar="TIME", help="For reading, and for trying."
)
@click.option(
    "--runners-record",
    type=click.Path(path_type=Path),
    help="What `soak runners check --json` said of the installation; else the config's.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; docs/doctor.md has its keys.")
def command(
    *,
    url: str | None,
    path: Path | None,
    allow_load: bool,
    reads_only: bool,
    api_key_env: str | None,
    api_key_file: Path | None,
    runners_record: Path | None,
    limit: str,
    as_json: bool,
) -> None:
    """Look at a server before it is soaked, and say what to type next.

    What it is, whether its cache can be tested, what a run would cost, and which published faults its version
    and flags leave open. On this machine a few passes are tried in namespaces of their own: at most 16
    requests and 60,000 prompt tokens, usually a tenth of that (64 and 120,000 behind data parallelism). On
    another it only reads, unless --allow-load, or the config's target.allow_load, says more.
    """
    try:
        if url is None and path is None:
            raise configs.ConfigError("an address such as http://127.0.0.1:30000 is wanted, or --config FILE")
        config = _config(path, url, api_key_env, api_key_file)
        record = runners_record or config.target.runners_record
        wanted = Wanted(
            config=config,
            key=config.target.api_key(),
            may_try=not reads_only and (config.target.loopback or allow_load or path is not None),
            why_not="--reads-only" if reads_only else f"{config.target.url} is not this machine",
            how="repeat without --reads-only" if reads_only else "repeat with --allow-load",
            limit_s=configs.duration_s(limit),
            controls_needed=controls_needed(config.detect.p0_max),
            record=None if record is None else read(record),
            config_words="" if path is None else shlex.quote(str(path)),
        )
        with Patience(sys.stderr) as patience:
            patience.now(f"looking at {config.target.url}")
            report = asyncio.run(_until_interrupted(wanted))
    except (configs.ConfigError, RecordError, ValueError) as error:
        click.echo(str(error), err=True)
        sys.exit(ExitCode.USAGE)
    except asyncio.CancelledError:
        click.echo("interrupted; what was under way has been aborted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    code = _CODES[report.state]
    if as_json:
        click.echo(json.dumps(report.as_dict(int(code)), indent=2))
    else:
        click.echo(page(report, min(110, shutil.get_terminal_size((110, 24)).columns)))
        click.echo(f"Exit code {int(code)}")
    sys.exit(code)
