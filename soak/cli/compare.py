"""``soak compare A B``: two runs beside each other, as before and after an upgrade of the server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from soak.cli.stoppable import fail
from soak.run.exit_code import ExitCode


@click.command(
    epilog="""\b
Exit codes: 0 B is no worse, 1 B is worse: its verdict, or a figure by more than chance, 2 bad usage,
3 a run says nothing about the cache (VACUOUS or CALIBRATING), so that nothing can be said of both.

\b
Examples:
  soak compare before after
  soak compare soak-runs/20261201T080000Z soak-runs/20261202T080000Z --json"""
)
@click.argument("before", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("after", metavar="RUN_B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
def command(*, before: Path, after: Path, as_json: bool) -> None:
    """Say what differs between two runs, and which of it by more than chance.

    RUN_A and RUN_B are folders as `soak run --out` names them; run the same config on both servers. Controls
    and probes are compared by ranks, latencies by ranks of the medians of stretches of time, shares by
    Fisher's exact test, all adjusted for the number of tests.
    """
    from soak.report.difference import compare
    from soak.report.difference_words import difference_words
    from soak.report.run_folder import NotARun, read_run_folder

    try:
        a, b = read_run_folder(before), read_run_folder(after)
        found = compare(a, b)
    except NotARun as error:
        sys.exit(fail(ExitCode.USAGE, str(error)))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        sys.exit(fail(ExitCode.USAGE, f"a summary is not as a run writes it ({error!r}); was it edited?"))
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        click.echo(difference_words(a, b, found))
    if found.worse_verdict and found.verdicts[1] in ("SUSPECT", "CORRUPT"):
        sys.exit(ExitCode.CORRUPT)
    if not found.says_something:
        sys.exit(ExitCode.INCONCLUSIVE)
    sys.exit(ExitCode.CORRUPT if any(f.differs and f.worse for f in found.figures) else ExitCode.CLEAN)
