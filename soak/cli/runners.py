"""``soak runners``: which fixes an installed SGLang carries, and writing in those that it lacks.

Needs click and the standard library, so that it can be copied into a server image.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from soak.runners.answer import DEAD, FIXED, PARTIAL, VULNERABLE
from soak.runners.applying import ApplyRefused, Change, apply, revert
from soak.runners.checking import Report, check_site, required_names, surprise
from soak.runners.faults import BY_NAME
from soak.runners.record import RecordError, write
from soak.runners.site import Site, SiteError

_SITE = click.option(
    "--site",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder that holds the package sglang, such as site-packages.",
)
_PYTHON = click.option("--python", help="The server's interpreter (default: the one soak runs in).")


@click.group(
    epilog="""\b
Examples:
  soak runners check
  soak runners apply --python /opt/sglang/bin/python"""
)
def command() -> None:
    """Which known faults an installed SGLang has, read from its source and never run."""


def _site(site: Path | None, python: str | None) -> Site:
    if site is not None and python is not None:
        raise click.UsageError("--site and --python name the same thing; give one of them")
    try:
        return Site.at(site) if site is not None else Site.of(python or sys.executable)
    except SiteError as error:
        raise _Unusable(str(error)) from error


@command.command(
    epilog="""\b
Examples:
  soak runners check
  soak runners check --python /opt/sglang/bin/python --require 34184,32555
  soak runners check --json > runners.json"""
)
@_SITE
@_PYTHON
@click.option("--require", default="", help="Faults that must be fixed, such as 34184,32555.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write the record here, too.")
def check(site: Path | None, python: str | None, require: str, as_json: bool, record: Path | None) -> None:
    """Say of every known fault: fixed, vulnerable, not applicable or unknown.

    Exit code 1 if a required fix is missing, 3 if one is unknown, 2 if nothing could be checked.
    """
    try:
        required = required_names(require) if require.strip() else ()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--require") from error
    found = _site(site, python)
    try:
        report = check_site(found, required)
        if record is not None:
            write(report, record)
    except (SiteError, RecordError) as error:
        raise _Unusable(str(error)) from error
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        _print(report)
    for name in (*report.missing, *report.unclear):
        answer = report.answers[name]
        click.echo(
            f"required, and {answer.state}: SGLang #{BY_NAME[name].number}: {answer.because}", err=True
        )
    sys.exit(report.exit_code)


@command.command(
    "apply",
    epilog="""\b
Examples:
  soak runners apply --python /opt/sglang/bin/python""",
)
@_SITE
@_PYTHON
def apply_command(site: Path | None, python: str | None) -> None:
    """Write the fixes of SGLang #34184 and #32555 into 0.5.15.post1 to 0.5.17, where they are missing.

    Originals are kept in the package; `soak runners revert` puts them back byte for byte.
    """
    found = _site(site, python)
    try:
        changed = apply(found)
    except (ApplyRefused, SiteError, OSError) as error:
        raise _Unusable(str(error)) from error
    _list(found, changed, "fixed", "nothing to do: SGLang #34184 and #32555 are fixed here")


@command.command(
    "revert",
    epilog="""\b
Examples:
  soak runners revert --python /opt/sglang/bin/python""",
)
@_SITE
@_PYTHON
def revert_command(site: Path | None, python: str | None) -> None:
    """Put back the files that `soak runners apply` changed."""
    found = _site(site, python)
    try:
        changed = revert(found)
    except (ApplyRefused, SiteError, OSError) as error:
        raise _Unusable(str(error)) from error
    _list(found, changed, "put back", "nothing to do: no file here was changed by soak")


class _Unusable(click.ClickException):
    exit_code = 2


def _list(site: Site, changed: list[Change], word: str, otherwise: str) -> None:
    for change in changed:
        numbers = ", ".join(f"#{BY_NAME[name].number}" for name in change.faults)
        click.echo(f"{word}: {site.package / change.path} ({numbers})")
    if not changed:
        click.echo(otherwise)


def _print(report: Report) -> None:
    click.echo(f"SGLang {report.version or '(version not said)'} in {report.package}")
    for name, answer in report.answers.items():
        fault = BY_NAME[name]
        partial = f" ({answer.fix} fix)" if answer.fix in (PARTIAL, DEAD) else ""
        click.echo(f"{'#' + str(fault.number):>7}  {answer.state + partial:<28} {name}")
        if answer.state != FIXED:
            click.echo(f"         {answer.because}")
            click.echo(f"         looked at {', '.join(answer.where)}")
            if answer.state == VULNERABLE and fault.advice:
                click.echo(f"         {fault.advice}")
        odd = surprise(fault, report.version, answer)
        if odd:
            click.echo(f"         note: {odd}")
