"""``soak bench stub`` and ``soak bench load``: how fast the client is, beside others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from soak.cli.sim import end_with_stdin
from soak.export.patience import Patience


@click.command(
    epilog="""\b
Examples:
  soak bench stub
  soak bench stub --port 30001"""
)
@click.option(
    "--port", default=30000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--while-stdin", is_flag=True, hidden=True, help="End when stdin ends.")
def stub(*, port: int, host: str, while_stdin: bool) -> None:
    """A server that does nothing but answer, for benches of clients: /generate and OpenAI's endpoints.

    Answers are made beforehand; nothing is generated, cached or checked. To soak something, use `soak sim`.
    """
    from soak.bench.stub.serving import run

    if while_stdin:
        end_with_stdin()
    try:
        run(host, port, lambda url: click.echo(f"stub ready on {url}"))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


@click.command(
    epilog="""\b
Examples:
  soak bench load
  soak bench load --short --at-least 0.8 --whole-at-least 0.4
  soak bench load --peers build/peers --page docs/performance.md"""
)
@click.option("--short", is_flag=True, help="A minute of it, for CI.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Of each client.")
@click.option("--requests", type=click.IntRange(100, 1_000_000), help="Of one round.")
@click.option(
    "--peers",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of other load generators (make bench-peers).",
)
@click.option(
    "--at-least",
    type=click.FloatRange(0),
    help="Exit code 1 if the client gets less than this times the requests out of a CPU second that the bare "
    "aiohttp client does.",
)
@click.option(
    "--whole-at-least", type=click.FloatRange(0), help="The same for a whole run, with all it writes."
)
@click.option("--json", "as_json", is_flag=True, help="All figures as one JSON object.")
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Put the tables in."
)
def load(
    *,
    short: bool,
    rounds: int | None,
    requests: int | None,
    peers: Path | None,
    at_least: float | None,
    whole_at_least: float | None,
    as_json: bool,
    page: Path | None,
) -> None:
    """Requests, chunks, CPU, memory and schedule lag of soak's client, by turns with a bare aiohttp client.

    On a stub of our own, each client in a process of its own. Ratios are medians over neighbouring rounds.
    """
    from dataclasses import replace

    from soak.bench.load import bench, report
    from soak.bench.load import peers as others
    from soak.bench.page import put_between

    if peers is not None and not peers.is_dir():
        raise click.ClickException(f"{peers} is no folder: `make bench-peers` makes build/peers")
    extent = bench.SHORT if short else bench.Extent()
    if rounds is not None:
        extent = replace(extent, rounds=rounds)
    if requests is not None:
        extent = replace(extent, requests=requests)
    try:
        with Patience(sys.stderr) as patience:
            found, missing = others.installed(peers) if peers else ((), {})
            done = bench.measure(extent, found, patience.now)
        done.missing |= missing
        given = " ".join(
            ["soak bench load", *(["--short"] if short else []), *(["--peers"] if peers else [])]
        )
        words = report.markdown(done, given)
        if page is not None:
            put_between(page, "load", words)
    except (RuntimeError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(report.as_dict(done), indent=1) if as_json else words)
    low = report.below(done, at_least, whole_at_least)
    for said in low:
        click.echo(f"too slow: {said}", err=True)
    if low:
        sys.exit(1)
