"""``soak calibrate``: learn beforehand what is normal on a server, and keep it for the runs to come."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from soak import config as configs
from soak.cli.given import overrides
from soak.cli.stoppable import explain, fail, run_stoppable
from soak.export.learnt import Learnt, learnt_words
from soak.export.terminal import Terminal
from soak.run.calibrating import CalibrationRun
from soak.run.exit_code import ExitCode


def _code(learnt: Learnt) -> ExitCode:
    """Interruption first, since it is not whole; then what was found, then what could not be learned."""
    if learnt.interrupted:
        return ExitCode.INTERRUPTED
    if learnt.alarms:
        return ExitCode.CORRUPT
    if learnt.lost:
        return ExitCode.TARGET
    return ExitCode.CLEAN if learnt.complete else ExitCode.INCONCLUSIVE


@click.command(
    epilog="""\b
Exit codes: 0 every kind of resume that the load plants is calibrated, 1 an alarm was raised: nothing may
be learned from this server, 2 bad config or usage, 3 something could not be calibrated or time was up,
4 target unusable or lost, 70 soak itself failed, 130 interrupted. What was learned by then is kept.

\b
Examples:
  soak calibrate --url http://127.0.0.1:30000 --state soak-state.sqlite
  soak calibrate mine.yaml --state soak-state.sqlite --p0-max 0.01"""
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--url", "--target", "url", metavar="URL", help="The server, e.g. http://127.0.0.1:30000.")
@click.option("--state", type=click.Path(path_type=Path), help="File to keep it in (run.state).")
@click.option("--p0-max", type=float, help="How rare an exceedance must be bounded to (detect.p0_max).")
@click.option("--within", metavar="TIME", help="Stop after so long, keeping what there is.")
@click.option("--seed", type=int, help="Of the load that plants prefixes (run.seed).")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    *,
    config: Path | None,
    url: str | None,
    state: Path | None,
    p0_max: float | None,
    within: str | None,
    seed: int | None,
    quiet: bool,
) -> None:
    """Make controls until a server's healthy resumes are known, and keep that in a state file.

    CONFIG is the YAML file of the runs to come: its load is what the server is calibrated for, sent at a
    low rate, and its budgets hold. A `soak run` with the same --state, on a server of the same fingerprint,
    starts calibrated. Stop it and start it again as you like: it goes on where it was.
    """
    try:
        within_s = None if within is None else configs.duration_s(within)
    except ValueError as error:
        sys.exit(fail(ExitCode.USAGE, f"--within: {error}"))
    given = overrides(target__url=url, run__state=state, run__seed=seed, detect__p0_max=p0_max)
    try:
        loaded = configs.load(config, given)
        with Terminal(sys.stdout, quiet=quiet) as screen:
            learnt = run_stoppable(CalibrationRun(loaded, screen, within_s=within_s).run)
    except (asyncio.CancelledError, Exception) as error:
        sys.exit(explain(error, state or Path("state"), "the last seconds of calibration may be lost"))
    if not quiet:
        click.echo(learnt_words(learnt, str(loaded.run.state)))
    sys.exit(_code(learnt))
