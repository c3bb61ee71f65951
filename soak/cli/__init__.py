"""The command line: thin click commands, no logic of their own."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from soak import __version__

_COMMANDS = {
    "doctor": "Look at a server before it is soaked, and say what to type next.",
    "init": "Ask a server who it is, and write a commented config for it.",
    "run": "Soak a server and say whether its prefix cache tells the truth.",
    "calibrate": "Learn beforehand what is normal on a server, and keep it for runs to come.",
    "alarms": "List alarms, of a state file or of a running soak.",
    "incidents": "List and explain what alarms have left in a journal; hand one on.",
    "join": "One summary and one verdict over shards that ran on several machines.",
    "report": "Make one HTML file of a run, for people who were not there.",
    "compare": "Two runs beside each other: what differs by more than chance, and by which test.",
    "replay": "Send again what led to an incident, and say whether it happens again; shrink it.",
    "chaos": "Put faults into a server's surroundings on purpose, undo them, and say what held.",
    "ack": "Acknowledge an alarm, or mute it.",
    "plan": "Print what a config would send, or what it would cost. Sends nothing.",
    "text": "Write the text that a run in text sends, as one model's token ids.",
    "explain": "Say what a verdict, a fault, a conjunction, an alert or a metric is.",
    "demo": "Soak the embedded simulator with a planted fault for a minute.",
    "sim": "Serve the embedded SGLang-compatible simulator.",
    "runners": "Which known faults an installed SGLang has, and the fixes it lacks.",
    "bench": "Measure soak's own parts on this machine.",
    "completion": "Print what makes a shell complete commands and options.",
}


class _Lazy(click.Group):
    """Imports a command's module only when it is called, so that --help and errors come at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"soak.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from soak.run.exit_code import ExitCode

            # click's own exit code for it would be 1, which says CORRUPT
            click.echo("interrupted", err=True)
            sys.exit(ExitCode.INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  soak demo
  soak doctor http://127.0.0.1:30000
  soak init http://127.0.0.1:30000
  soak run soak.yaml --duration 10m""",
)
@click.version_option(__version__, prog_name="soak")
def main() -> None:
    """Keep hostile, realistic load on an SGLang server and ask whether what its prefix cache serves is true.

    Start with `soak demo`, then `soak doctor http://127.0.0.1:30000`, which says what to type next.
    """
