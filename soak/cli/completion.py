"""``soak completion SHELL``: the script that completes commands and options, for bash, zsh or fish."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    epilog="""\b
Examples:
  soak completion bash >> ~/.bashrc
  soak completion zsh >> ~/.zshrc
  soak completion fish > ~/.config/fish/completions/soak.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Print what makes a shell complete soak's commands and options; it takes effect in the next shell."""
    from soak.cli import main

    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"this click knows no completion for {shell}")
    click.echo(made(main, {}, "soak", "_SOAK_COMPLETE").source())
