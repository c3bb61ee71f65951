"""``soak report DIR``: one HTML file of a run, also of one that was killed or still goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from soak.cli.stoppable import fail
from soak.export.patience import Patience
from soak.run.exit_code import ExitCode

_MOST_S = 600.0


def report_at_the_end(folder: Path) -> str:
    """Make a run's report in a process of its own, which may fail as it likes; a line on what came of it.

    The run is over by then and keeps its exit code, whatever happens here; an interruption ends only this.
    """
    again = f"`soak report {folder}` makes it later"

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "soak", "report", str(folder)],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_MOST_S,
            start_new_session=True,
            check=False,
        )
    except KeyboardInterrupt:
        return f"no report: interrupted; {again}"
    except subprocess.TimeoutExpired:
        return f"no report after {_MOST_S:g} s; {again}"
    except OSError as error:
        return f"no report: {error.strerror or error}; {again}"
    finally:
        signal.signal(signal.SIGTERM, before)
    if done.returncode:
        told = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"no report: {told[-1]}; then {again}"
    return done.stdout.strip()


@click.command(
    epilog="""\b
Examples:
  soak report soak-runs/20261201T080000Z
  soak report week --to report-for-the-meeting.html"""
)
@click.argument("folder", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), help="Else RUN_DIR/report.html.")
def command(*, folder: Path, to: Path | None) -> None:
    """Make the report of a run: one HTML file that needs no network.

    RUN_DIR is what `soak run --out` named, or a folder in soak-runs. Every run makes one at its end; this
    makes it anew, or for a run that was killed or still goes on.
    """
    from soak.report.writing import NotARun, PlotsUnavailable, write_report

    try:
        with Patience(sys.stderr) as patience:
            patience.now(f"drawing {folder}")
            place = write_report(folder, to)
        click.echo(f"report: {place}")
    except (NotARun, PlotsUnavailable) as error:
        sys.exit(fail(ExitCode.USAGE, str(error)))
    except OSError as error:
        sys.exit(fail(ExitCode.USAGE, f"{error.filename or folder}: {error.strerror or error}"))
