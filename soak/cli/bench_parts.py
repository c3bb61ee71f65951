"""``soak bench parse``, ``judge`` and ``flat``: what reading, judging and counting cost."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from soak.export.patience import Patience

_JSON = click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
_PAGE = click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Put the table in."
)


@click.command(
    epilog="""\b
Examples:
  soak bench parse
  soak bench parse --turns 5 --at-least 1.2"""
)
@click.option("--turns", type=click.IntRange(1, 1000), default=15, show_default=True, help="Of each size.")
@click.option(
    "--at-least", type=click.FloatRange(0), help="Exit code 1 below this many times orjson.loads's speed."
)
@_JSON
@_PAGE
def parse(*, turns: int, at_least: float | None, as_json: bool, page: Path | None) -> None:
    """Answers with 4,096 and 131,072 logprobs from bytes to checked arrays, beside orjson.loads alone."""
    from soak.bench.parse import measuring, report

    seen = []
    try:
        with Patience(sys.stderr) as patience:
            for tokens, top in measuring.CASES:
                patience.now(f"reading {tokens:,} logprobs, top {top}")
                seen.append(measuring.measure(tokens, top, turns))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    _told("parse", report.markdown(seen), [dataclasses.asdict(one) for one in seen], as_json, page)
    _end(report.below(seen, at_least) if at_least is not None else [])


@click.command(
    epilog="""\b
Examples:
  soak bench judge
  soak bench judge --probes 1000 --json"""
)
@click.option(
    "--probes", type=click.IntRange(1), default=10_000, show_default=True, help="Compared and judged."
)
@click.option("--tokens", type=click.IntRange(1), default=256, show_default=True, help="Scored in each.")
@click.option("--at-most", type=click.FloatRange(0), help="Exit code 1 above this many CPU seconds in all.")
@_JSON
@_PAGE
def judge(*, probes: int, tokens: int, at_most: float | None, as_json: bool, page: Path | None) -> None:
    """Divergence of many probes, vectorised and one by one, and the detectors on them, in CPU seconds."""
    from soak.bench.judge import measuring, report

    with Patience(sys.stderr) as patience:
        patience.now("comparing and judging")
        seen = measuring.measure(probes, tokens)
    _told("judge", report.markdown(seen), dataclasses.asdict(seen), as_json, page)
    slow = at_most is not None and seen.total_s > at_most
    _end([f"{seen.total_s:.2f} s of CPU, {at_most:g} are wanted"] if slow else [])


@click.command(
    epilog="""\b
Examples:
  soak bench flat --many 100000
  soak bench flat --part journal --json"""
)
@click.option("--few", type=click.IntRange(5), default=10_000, show_default=True, help="Requests before.")
@click.option("--many", type=click.IntRange(6), default=1_000_000, show_default=True, help="Requests after.")
@click.option("--part", "parts", multiple=True, help="Only this one; may be given again.")
@_JSON
@_PAGE
def flat(*, few: int, many: int, parts: tuple[str, ...], as_json: bool, page: Path | None) -> None:
    """Does a request cost the same after a million others: plan, journal, detectors, metrics.

    Each part in a process of its own, in which one that has seen many takes turns with one that has seen few.
    Exit code 1: a part takes more than 1.25 times the time or 1.1 times the memory. A million take half an
    hour.
    """
    from soak.bench.flat import measuring, report
    from soak.bench.flat.parts import PARTS

    unknown = sorted(set(parts) - set(PARTS))
    if unknown or few >= many:
        raise click.ClickException(
            f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}"
            if unknown
            else f"--few {few} is not fewer than --many {many}"
        )
    seen = []
    with Patience(sys.stderr) as patience:
        for part in parts or PARTS:
            patience.now(f"{part}, {many:,} times")
            # a process of its own, so that its memory is this part's
            ran = subprocess.run(
                [sys.executable, "-m", "soak.bench.flat", part, str(few), str(many)],
                stdout=subprocess.PIPE,
                check=False,
            )
            if ran.returncode:
                raise click.ClickException(f"{part} was not measured; its words are above")
            seen.append(measuring.Flatness(**json.loads(ran.stdout)))
    _told("flat", report.markdown(seen), [dataclasses.asdict(one) for one in seen], as_json, page)
    _end(report.grown(seen))


def _told(name: str, words: str, figures: Any, as_json: bool, page: Path | None) -> None:
    from soak.bench.machine import installed, machine
    from soak.bench.page import head, put_between

    about = machine() | {"pysimdjson": installed("pysimdjson")}
    whole = f"{head(f'soak bench {name}', about)}\n\n{words}"
    if page is not None:
        try:
            put_between(page, name, whole)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    click.echo(json.dumps(figures, indent=1) if as_json else whole)


def _end(bad: list[str]) -> None:
    for words in bad:
        click.echo(f"not as it should be: {words}", err=True)
    if bad:
        sys.exit(1)
