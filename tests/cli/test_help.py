"""Every command's help has an example, and every example is a call that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from soak.cli import main


def every_command() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Words and command, groups and the whole among them."""
    stack: list[tuple[tuple[str, ...], click.Command]] = [((), main)]
    while stack:
        words, command = stack.pop()
        yield words, command
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None, name
                stack.append(((*words, name), below))


COMMANDS = dict(every_command())


def examples(words: tuple[str, ...]) -> list[str]:
    """Lines under ``Examples:`` in the help, as a person sees them."""
    done = CliRunner().invoke(main, [*words, "--help"], terminal_width=200)
    assert done.exit_code == 0, done.output
    parts = re.split(r"^\s*Examples?:\n", done.output, maxsplit=1, flags=re.MULTILINE)
    return [line.strip() for line in parts[1].splitlines() if line.strip()] if len(parts) == 2 else []


def taken(line: str) -> list[str]:
    """The words that soak gets of a shell line. Raises AssertionError for a line without it."""
    before, found, after = re.sub(r"\s*(\||>>?)\s.*", "", line).partition("soak ")
    assert found, line
    assert re.fullmatch(r"(\w+=\S+ )*", before), line
    return shlex.split(after)


def parsed(words: list[str]) -> None:
    """Parse as a call would be, and run nothing. Raises click.UsageError."""
    command: click.Command = main
    name = "soak"
    parent: click.Context | None = None
    while True:
        ctx = command.make_context(name, list(words), parent)
        rest = [*ctx._protected_args, *ctx.args]
        if not isinstance(command, click.Group) or not rest:
            return
        found_name, found, words = command.resolve_command(ctx, rest)
        assert found is not None
        command, name, parent = found, str(found_name), ctx


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "soak")
def test_the_help_has_examples_that_the_command_takes(words: tuple[str, ...]) -> None:
    shown = examples(words)
    assert shown, f"soak {' '.join(words)} --help has no example"
    for line in shown:
        given = taken(line)
        assert tuple(given[: len(words)]) == words, line
        parsed(given)


def test_a_wrong_example_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parsed(["run", "--teapot"])
    with pytest.raises(click.UsageError):
        parsed(["brew"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_SOAK_COMPLETE" in done.output


def test_the_shell_is_told_of_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "soak re")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_SOAK_COMPLETE", "bash_complete")
    done = CliRunner().invoke(main, [], prog_name="soak")
    assert {line.partition(",")[2] for line in done.output.splitlines()} == {"report", "replay"}
