"""``soak chaos``: run an experiment, see what is in force, undo it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from soak.chaos.ledger import Kept, LedgerUnusable, ledger_folder, owned
from soak.chaos.report import ChaosExit, report_words
from soak.chaos.running import (
    ExperimentRun,
    StillInForceError,
    experiments,
    refuse_commands_that_are_not_there,
)
from soak.chaos.schedule import schedule
from soak.chaos.spec import Experiment, load
from soak.chaos.undoing import left_by_now, undo_all_left
from soak.cli.given import overrides, settings
from soak.cli.run import run_id_folder
from soak.cli.stoppable import explain, fail, run_stoppable
from soak.config import ConfigError
from soak.export.terminal import Terminal

_STOP_S = 120.0
_ledger = click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    help="Folder where what is in force is written down; default: SOAK_CHAOS_LEDGER, or one for all.",
)


@click.group(
    epilog="""\b
Examples:
  soak chaos list
  soak chaos run slow-readers --target http://127.0.0.1:30000
  soak chaos run retraction --set targets.server.disruptive=true
  soak chaos stop"""
)
def command() -> None:
    """Experiments: faults put into a server's surroundings on purpose, while the oracle watches."""


@command.command(
    epilog="""\b
Exit codes: 0 the hypothesis held, 1 memory is not true, 2 bad experiment or usage, 3 nothing can be said,
4 a target unusable, lost or not serving, 5 the hypothesis did not hold, 6 something is still in force,
70 soak itself failed, 130 interrupted.

\b
Examples:
  soak chaos run slow-readers --target http://127.0.0.1:30000
  soak chaos run retraction --set targets.server.disruptive=true --seed 7
  soak chaos run mine.yaml --plan"""
)
@click.argument("experiment")
@click.option("--target", metavar="URL", help="The server that is soaked, e.g. http://127.0.0.1:30000.")
@click.option("--seed", type=int, help="The same seed plans the same actions at the same times.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for chaos.json and the soak's files.")
@_ledger
@click.option("--set", "given", multiple=True, metavar="KEY.KEY=VALUE", help="Any other value of the file.")
@click.option("--plan", is_flag=True, help="Print what would be done when, and do nothing.")
@click.option("--no-watchdog", is_flag=True, help="No process beside it that undoes when it is killed.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def run(
    *,
    experiment: str,
    target: str | None,
    seed: int | None,
    out: Path | None,
    ledger: Path | None,
    given: tuple[str, ...],
    plan: bool,
    no_watchdog: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run an experiment: the name of one that ships (soak chaos list), or a YAML file.

    What others could feel is done only to targets that the file names with disruptive: true.
    """
    try:
        loaded = read(experiment, given, target, seed)
    except ConfigError as error:
        sys.exit(fail(_code(ChaosExit.USAGE), str(error)))
    if plan:
        _show_plan(loaded, as_json)
        return
    folder = out or run_id_folder().with_name(f"{run_id_folder().name}-{loaded.experiment}")
    words = ["soak", "chaos", "run", experiment, "--seed", str(loaded.seed)]
    words += ["--target", target] if target else []
    for pair in given:
        words += ["--set", pair]
    sys.exit(_run(loaded, folder, ledger, shlex.join(words), (as_json, quiet, not no_watchdog)))


def read(experiment: str, given: tuple[str, ...], target: str | None, seed: int | None) -> Experiment:
    """The experiment of that name or file, with the command line's values. Raises ConfigError."""
    shipped = experiments()
    path = shipped.get(experiment) or Path(experiment)
    if not path.exists():
        raise ConfigError(f"{experiment}: no such file, and none that ships; those are {', '.join(shipped)}")
    # --set wants SECTION.KEY; a key of the file itself is one of a section without a name here
    inner = settings(
        [pair if "." in pair.partition("=")[0] else f"top.{pair}" for pair in given], overrides()
    )
    top = inner.pop("top", {})
    if seed is not None:
        top["seed"] = seed
    loaded = load(path, {**inner, **top}, target)
    refuse_commands_that_are_not_there(loaded)
    return loaded


def _code(code: ChaosExit) -> Any:
    return code


def _show_plan(experiment: Experiment, as_json: bool) -> None:
    planned = [one.as_dict() for one in schedule(experiment)]
    if as_json:
        click.echo(json.dumps(planned, indent=2))
        return
    for one in planned:
        lasting = f" for {one['for_s']:.1f} s" if one["for_s"] else ""
        told = ", ".join(f"{k} {v}" for k, v in one["settings"].items() if k not in ("seed", "held_ms"))
        click.echo(
            f"{one['at_s']:8.1f} s  {one['name']} on {', '.join(one['targets'])}{lasting}"
            + (f" ({told})" if told else "")
        )


def _run(
    experiment: Experiment, out: Path, ledger: Path | None, words: str, how: tuple[bool, bool, bool]
) -> int:
    as_json, quiet, watchdog = how
    try:
        with Terminal(sys.stderr if as_json else sys.stdout, quiet=quiet) as screen:
            ran = ExperimentRun(
                experiment, out, ledger or ledger_folder(), screen, watchdog=watchdog, command=words
            )
            report = run_stoppable(ran.run)
    except (StillInForceError, LedgerUnusable) as error:
        return fail(_code(ChaosExit.IN_FORCE), f"{error}\nTry again with: soak chaos stop")
    except (asyncio.CancelledError, Exception) as error:
        return explain(error, out, "no report was written")
    if as_json:
        click.echo(json.dumps(report, indent=2))
    elif not quiet:
        click.echo(f"\n{report_words(report)}\n\nreport: {out / 'chaos.json'}")
    return int(report["exit_code"])


@command.command("list", epilog="\b\nExample:\n  soak chaos list")
@_ledger
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(*, ledger: Path | None, as_json: bool) -> None:
    """List the experiments that ship, those that run, and what is in force by now."""
    folder = ledger or ledger_folder()
    try:
        kept = left_by_now(folder)
    except LedgerUnusable as error:
        sys.exit(fail(_code(ChaosExit.IN_FORCE), str(error)))
    shipped = {name: load_about(path) for name, path in experiments().items()}
    if as_json:
        click.echo(json.dumps({"experiments": shipped, "ledgers": [_kept(k, a) for k, a in kept]}, indent=2))
        return
    for name, about in shipped.items():
        click.echo(f"{name:14} {about}")
    for one, alive in kept:
        state = f"runs as process {one.pid}" if alive else "is dead, and has left this in force"
        click.echo(f"\n{one.experiment} {state}:")
        for entry in one.in_force:
            click.echo(f"  {entry.what} on {entry.target}, since {_utc(entry.began_s)}")
    if not kept:
        click.echo("\nnothing is in force")


def load_about(path: Path) -> str:
    """What an experiment that ships says of itself, in a line."""
    import yaml

    return " ".join(str(yaml.safe_load(path.read_text(encoding="utf-8")).get("about", "")).split())


def _kept(kept: Kept, alive: bool) -> dict[str, Any]:
    return {
        "experiment": kept.experiment,
        "pid": kept.pid,
        "alive": alive,
        "in_force": [
            {"what": entry.what, "target": entry.target, "since": _utc(entry.began_s)}
            for entry in kept.in_force
        ],
    }


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@command.command(
    epilog="""\b
Exit codes: 0 nothing is in force any more, 6 something still is.

\b
Example:
  soak chaos stop"""
)
@_ledger
def stop(*, ledger: Path | None) -> None:
    """End experiments that run, and undo what they or dead ones have left in force."""
    folder = ledger or ledger_folder()
    try:
        for kept, alive in left_by_now(folder):
            if alive:
                click.echo(f"ending {kept.experiment}, process {kept.pid}")
                _end(kept)
        done = asyncio.run(undo_all_left(folder, click.echo))
        left = [one for one in done if not one.ok] or left_by_now(folder)
    except LedgerUnusable as error:
        sys.exit(fail(_code(ChaosExit.IN_FORCE), str(error)))
    click.echo("something is still in force" if left else "nothing is in force")
    sys.exit(ChaosExit.IN_FORCE if left else ChaosExit.HELD)


def _end(kept: Kept) -> None:
    """Ask its process to end, and wait: it undoes its own. Only who holds a ledger's lock is ever asked."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(kept.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while kept.path.exists() and owned(kept.path) and time.monotonic() < deadline:
        time.sleep(0.1)
