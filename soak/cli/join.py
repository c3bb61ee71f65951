"""``soak join``: the summaries of shards that ran apart as one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import orjson

from soak.cli.stoppable import fail
from soak.export.closing import closing_words
from soak.export.summary import SUMMARY_NAME, as_json, write_atomically
from soak.run.exit_code import ExitCode
from soak.shards.together import NotShards, told_of_shards


def _summary(path: Path) -> dict[str, Any]:
    """Of a folder of a run, or a file. Raises NotShards in words."""
    file = path / SUMMARY_NAME if path.is_dir() else path
    try:
        read = orjson.loads(file.read_bytes())
    except OSError as error:
        missing = "; a shard writes it when it ends" if isinstance(error, FileNotFoundError) else ""
        raise NotShards(f"{file}: {error.strerror}{missing}") from error
    except orjson.JSONDecodeError as error:
        raise NotShards(f"{file}: not the summary of a run: {error}") from error
    if not isinstance(read, dict) or "verdict" not in read:
        raise NotShards(f"{file}: not the summary of a run")
    return read


@click.command(
    "join",
    epilog="""\b
Exit codes: those of `soak run`, of all shards together; 2 for what are not the shards of one run.

\b
Examples:
  soak join runs/shard-*-of-4
  soak join shard-0.json shard-1.json --json > summary.json""",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="File for the joined summary.")
@click.option("--json", "as_json_lines", is_flag=True, help="Print it as JSON on stdout.")
def command(*, paths: tuple[Path, ...], out: Path | None, as_json_lines: bool) -> None:
    """One summary and one verdict over the shards of a run that ran on several machines.

    PATHS are their folders, or their summary.json; all shards must be there.
    """
    try:
        summary = told_of_shards([_summary(path) for path in paths])
        if out is not None:
            write_atomically(out, summary)
    except NotShards as error:
        sys.exit(fail(ExitCode.USAGE, str(error)))
    except OSError as error:
        sys.exit(fail(ExitCode.USAGE, f"{error.filename or out}: {error.strerror or error}"))
    if as_json_lines:
        sys.stdout.buffer.write(as_json(summary))
    else:
        click.echo(closing_words(summary))
    sys.exit(int(summary["exit_code"]))
