"""docs/reference/cli.md: every command with its arguments and options, as ``--help`` has them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from soak.cli import main
from soak.run.exit_code import ExitCode

HEAD = """# Commands

`soak COMMAND --help` says the same in the terminal. This page is made from the commands by
`python -m docs.generate`.

## Exit codes of a run

| code | |
| --- | --- |
"""

MEANS = {
    ExitCode.CLEAN: "CLEAN: enough valid probes, every required conjunction reached, nothing found",
    ExitCode.CORRUPT: "SUSPECT or CORRUPT",
    ExitCode.USAGE: "bad config or usage: one line for each mistake, nothing was started",
    ExitCode.INCONCLUSIVE: "VACUOUS (what must be reached was not) or still CALIBRATING: no verdict",
    ExitCode.TARGET: "target unusable, or lost",
    ExitCode.LOAD: "load not delivered, or a limit of `thresholds` missed",
    ExitCode.FAULT: "a fault of soak's own, with a traceback: never a verdict",
    ExitCode.INTERRUPTED: "interrupted; the verdict so far is still written",
}


def page() -> str:
    """The whole page, Markdown."""
    codes = "\n".join(f"| {code.value} | {words} |" for code, words in MEANS.items())
    return "\n".join([HEAD + codes + "\n", *(_section(path, command) for path, command in commands())])


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, groups before what they hold."""
    yield from _below("soak", main)


def _below(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _below(f"{path} {name}", command)


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    lines = [f"## {path}", "", "```text", usage, "```", "", *_prose(command.help or ""), ""]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        lines += ["| option | default | |", "| --- | --- | --- |"]
        lines += [_row(option, context) for option in options]
        lines.append("")
    if command.epilog:
        epilog = re.sub(r"\n{3,}", "\n\n", inspect.cleandoc(command.epilog.replace("\b", "")).strip())
        lines += ["```text", *epilog.splitlines(), "```", ""]
    return "\n".join(lines)


def _prose(text: str) -> list[str]:
    lines = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b"):
            lines += ["```text", *paragraph.splitlines()[1:], "```", ""]
        else:
            lines += [" ".join(paragraph.split()).replace("<", "&lt;"), ""]
    return lines[:-1]


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    takes = "" if option.is_flag else f" {option.make_metavar(context)}"
    default = option.to_info_dict()["default"]
    shown = "" if default is None or option.is_flag or option.multiple or default == "" else f"`{default}`"
    if type(default).__name__ == "Sentinel":  # click's own word for: no default was given
        shown = ""
    words = (option.help or "").replace("|", "\\|")
    return f"| {names}{takes.replace('|', ' or ')} | {shown} | {words} |"
