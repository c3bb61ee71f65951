"""``soak run``: a config and a few overrides in, an exit code out."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from soak import config as configs
from soak.cli.given import nonce_from, overrides, settings, shard_pair, with_shards
from soak.cli.report import report_at_the_end
from soak.cli.stoppable import explain, fail, run_stoppable
from soak.export.closing import closing_words
from soak.export.summary import as_json
from soak.export.terminal import Terminal
from soak.run.exit_code import ExitCode
from soak.run.soaking import SoakRun
from soak.run.stretch import Beside
from soak.shards.crew import Crew
from soak.shards.on_ray import cluster


def run_id_folder() -> Path:
    """Where a run without --out leaves its files."""
    return Path("soak-runs") / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def shard_words(config: configs.Config) -> str:
    """Which shard of how many, as ``--shard`` takes it."""
    return f"{config.run.shard}/{config.run.shards}"


def again(
    path: Path | None,
    config: configs.Config,
    given: Sequence[str] = (),
    *,
    crew: bool = False,
    ray: str | None = None,
) -> str:
    """The command that runs the same plan on the same target. given: what ``--set`` was."""
    words = ["soak", "run", *([str(path)] if path else []), "--target", config.target.url]
    words += ["--seed", str(config.run.seed), "--duration", f"{config.run.duration:.10g}s"]
    if config.run.shards > 1:
        shards = f"{config.run.shards}"
        if ray is not None:
            words += ["--ray", ray, "--shards", shards]
        else:
            words += ["--workers", shards] if crew else ["--shard", shard_words(config)]
    for pair in given:
        words += ["--set", pair]
    return shlex.join(words)


def soak(
    config: configs.Config,
    out: Path,
    *,
    command: str,
    as_json_lines: bool = False,
    quiet: bool = False,
    resume: bool = False,
    workers: bool = False,
    ray: str | None = None,
    beside: Beside | None = None,
) -> tuple[int, dict[str, Any] | None]:
    """Run a config and show it; (exit code, summary), the summary None if no run came to be.

    beside: what may end it early; not with ``workers`` or ``ray``.
    """
    stream = sys.stderr if as_json_lines else sys.stdout
    try:
        with Terminal(stream, quiet=quiet) as screen:
            given: dict[str, Any] = {"command": command, "resume": resume}
            if ray is not None:
                with cluster(ray) as hire:
                    summary = run_stoppable(Crew(config, out, screen, hire=hire, **given).run)
            else:
                run = (
                    Crew(config, out, screen, **given)
                    if workers
                    else SoakRun(config, out, screen, beside=beside, **given)
                )
                summary = run_stoppable(run.run)
    except (asyncio.CancelledError, Exception) as error:
        return explain(error, out, "no summary was written"), None
    if as_json_lines:
        _show(as_json(summary))
    elif not quiet:
        _show(f"{closing_words(summary)}\n\nsummary: {out / 'summary.json'}\n".encode())
    if config.run.report:
        told = report_at_the_end(out)
        if as_json_lines and not quiet:
            click.echo(told, err=True)
        elif not quiet:
            _show(f"{told}\n".encode())
    return int(summary["exit_code"]), summary


def _show(text: bytes) -> None:
    """Write to stdout. A reader that is gone must not turn the exit code into another one."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    except OSError:
        # nobody is left to be told; Python flushes once more at its end, and must not fail there either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command(
    epilog="""\b
Exit codes: 0 CLEAN, 1 SUSPECT or CORRUPT, 2 bad config or usage, 3 VACUOUS or still CALIBRATING,
4 target unusable or lost, 5 load not delivered or a threshold missed, 70 soak itself failed,
130 interrupted.

\b
Examples:
  soak run --target http://127.0.0.1:30000 --duration 5m
  soak run workloads/smoke.yaml --seed 7 --json > summary.json
  soak run workloads/week.yaml --state soak.sqlite --out week --resume
  soak run workloads/nightly.yaml --workers 4
  soak run workloads/nightly.yaml --ray auto --shards 8
  soak run mine.yaml --shard 2/8 --nonce-of "$JOB" --out shard-2"""
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--target", metavar="URL", help="The server, e.g. http://127.0.0.1:30000.")
@click.option("--duration", metavar="TIME", help="How long, e.g. 90s, 10m, 8h, 7d.")
@click.option("--seed", type=int, help="The same seed plans the same load.")
@click.option("--shard", metavar="I/N", help="Drive only the indices congruent to I modulo N.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Share the plan out to N processes on this machine; one summary, one verdict, one port.",
)
@click.option("--ray", metavar="ADDRESS", help="Run --shards on a Ray cluster: auto, HOST:PORT or local.")
@click.option("--shards", type=click.IntRange(1, 4096), metavar="N", help="How many, with --ray.")
@click.option(
    "--nonce-of",
    metavar="TEXT",
    help="Draw run.nonce from TEXT, so that shards on several machines share it (a Job's UID, say).",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for summary.json and run.json.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="File in which evidence, calibration and alarms outlive this run.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run in --out if it was killed or interrupted; else begin one there.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Any other value of the config, e.g. load.rate=2; again for more.",
)
@click.option("--json", "as_json_lines", is_flag=True, help="Print the summary as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    *,
    config: Path | None,
    target: str | None,
    duration: str | None,
    seed: int | None,
    shard: str | None,
    workers: int | None,
    ray: str | None,
    shards: int | None,
    nonce_of: str | None,
    out: Path | None,
    state: Path | None,
    resume: bool,
    given: tuple[str, ...],
    as_json_lines: bool,
    quiet: bool,
) -> None:
    """Soak a server and say whether its prefix cache tells the truth.

    CONFIG is a YAML file; without one the defaults are used. Load off this machine must be allowed in the
    config (target.allow_load and a budget).
    """
    if resume and out is None:
        sys.exit(fail(ExitCode.USAGE, "--resume goes on with the run in a folder: name it with --out DIR"))
    try:
        index, count = shard_pair(shard) if shard is not None else (None, workers)
        if (ray is None) != (shards is None) or (ray is not None and workers is not None):
            raise configs.ConfigError("--ray ADDRESS and --shards N go together, and --workers without them")
        count = shards or count
        if shard is not None and (workers or shards) is not None:
            raise configs.ConfigError("--shard: this process is one of the shards, and starts no others")
        loaded = configs.load(
            config,
            settings(
                given,
                overrides(
                    target__url=target,
                    run__duration=duration,
                    run__seed=seed,
                    run__shard=index,
                    run__shards=count,
                    run__state=state,
                    run__nonce=None if nonce_of is None else nonce_from(nonce_of),
                ),
            ),
        )
        crew = shard is None and ((workers or shards or 1) > 1 or len(loaded.target.urls) > 1)
        if crew and workers is None and shards is None:
            loaded = with_shards(loaded, max(loaded.run.shards, len(loaded.target.urls)))
        if not crew and loaded.run.shards > 1 and loaded.run.nonce is None:
            raise configs.ConfigError(
                "run.nonce: the shards of one plan must share one: set it to the same number in all of them, "
                "or give all of them the same --nonce-of TEXT"
            )
    except configs.ConfigError as error:
        sys.exit(fail(ExitCode.USAGE, str(error)))
    code, _ = soak(
        loaded,
        out or run_id_folder(),
        command=again(config, loaded, given, crew=crew, ray=ray),
        as_json_lines=as_json_lines,
        quiet=quiet,
        resume=resume,
        workers=crew,
        ray=ray if crew else None,
    )
    sys.exit(code)
