"""``soak bench``: figures about soak itself, measured here and now."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Literal

import click

from soak.cli import bench_load, bench_parts
from soak.export.patience import Patience


@click.group(
    epilog="""\b
Examples:
  soak bench sim
  soak bench detect --reduced
  soak bench load --short"""
)
def command() -> None:
    """Measure soak's own parts on this machine. Timings are of one process on a shared machine."""


command.add_command(bench_load.stub)
command.add_command(bench_load.load)
command.add_command(bench_parts.parse)
command.add_command(bench_parts.judge)
command.add_command(bench_parts.flat)


@command.command(
    epilog="""\b
Examples:
  soak bench sim
  soak bench sim --json"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def sim(*, as_json: bool) -> None:
    """How fast the simulator prefills and decodes, in tokens per CPU second of one core."""
    from soak.bench.simulator import measure

    models: tuple[Literal["hybrid", "attention"], ...] = ("hybrid", "attention")
    numericses: tuple[Literal["exact", "production"], ...] = ("exact", "production")
    for model, numerics in itertools.product(models, numericses):
        with Patience(sys.stderr) as patience:
            patience.now(f"measuring {model}, {numerics}")
            speed = measure(model, numerics)
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(speed)))
        else:
            click.echo(
                f"{model:<10} {numerics:<10} start {speed.startup_s:5.2f} s  "
                f"prefill {speed.prefill_tokens_per_s:9,.0f} tokens/s  "
                f"decode at batch 8 {speed.decode_tokens_per_s:9,.0f} tokens/s"
            )


@command.command(
    epilog="""\b
Examples:
  soak bench detect --reduced
  soak bench detect --records bench --jobs 8 --json"""
)
@click.option(
    "--records",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("soak-runs/bench-detect"),
    show_default=True,
    help="Folder of the recorded probes; what is there already is not recorded again.",
)
@click.option("--reduced", is_flag=True, help="A few probes of everything, for CI.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=2, show_default=True, help="Recording processes."
)
@click.option("--json", "as_json", is_flag=True, help="All figures as one JSON object.")
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Put the tables in."
)
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw one run as SVG.")
def detect(
    *, records: Path, reduced: bool, jobs: int, as_json: bool, page: Path | None, picture: Path | None
) -> None:
    """Grade the detectors: probes until each known fault is found, and false alarms on clean servers.

    Faults and clean servers are simulated and probed once; every rule is graded on that record. Stopped, it
    goes on where it was. Exit code 1: a fault was not found, or a clean server alarmed.
    """
    from soak.bench.detect import bench
    from soak.bench.detect.outcome import BOOTSTRAPPED
    from soak.bench.machine import today
    from soak.bench.page import put_between

    plan = bench.REDUCED if reduced else bench.FULL
    try:
        with Patience(sys.stderr) as patience:
            patience.now("reading what is recorded, and recording what is not")
            done = bench.bench(
                records,
                plan,
                jobs=jobs,
                bootstrapped=bench.REDUCED_BOOTSTRAPPED if reduced else BOOTSTRAPPED,
                command="soak bench detect --reduced" if reduced else "soak bench detect",
                date=today(),
                say=patience.say,
            )
        if page is not None:
            put_between(page, "detect", done.markdown)
    except (RuntimeError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if picture is not None:
        picture.write_text(bench.picture(records, plan), encoding="utf-8")
    click.echo(json.dumps(done.as_dict(), indent=1) if as_json else done.markdown)
    for words in done.lost:
        click.echo(f"not as it should be: {words}", err=True)
    if done.lost:
        sys.exit(1)
