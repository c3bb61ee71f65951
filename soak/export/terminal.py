"""The live display of a running soak: a panel on a terminal, a line every few seconds elsewhere, or nothing.

It only shows snapshots. It must never write to anything but its own stream, and never measure by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from soak.export.closing import counts, nats, printable, share
from soak.export.panel import REACHED, clock, panel
from soak.export.snapshot import Snapshot


class _Screen(Console):
    """A console that falls silent when its reader has gone; rich's own would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Terminal:
    """Shows snapshots on ``stream``. Use as a context manager around the run, and call ``show`` often.

    live: a panel redrawn in place; None finds out whether the stream is a terminal that can do that.
    quiet: nothing at all. plain_every_s: seconds between lines where there is no panel.
    A stream that breaks (a closed pipe, a terminal hung up) makes the display quiet and nothing else: a soak
    outlives whoever watched it.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        live: bool | None = None,
        plain_every_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = _Screen(file=stream, highlight=False, force_terminal=live)
        wanted = stream.isatty() and not self._console.is_dumb_terminal if live is None else live
        self._quiet = quiet
        # Only what would land on this same terminal is redirected: a log or the JSON in a file stays there.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=stream is sys.stdout,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._in_place = wanted and not quiet
        self._every_s, self._now = plain_every_s, now
        self._next_s = float("-inf")
        self._last_verdict = ""

    def __enter__(self) -> Self:
        if self._in_place:
            self._write(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_place:
            self._write(self._live.stop)

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the panel; or write a line when it is time for one or the verdict has changed."""
        if self._in_place:
            self._write(lambda: self._live.update(panel(snapshot, self._console), refresh=True))
            return
        now = self._now()
        if now >= self._next_s or snapshot.verdict.value != self._last_verdict:
            self._next_s = now + self._every_s
            self._last_verdict = snapshot.verdict.value
            self.say(plain_line(snapshot))

    def status(self, line: str) -> None:
        """One line of progress: redrawn in place on a terminal, else written when it is time for one."""
        if self._in_place:
            self._write(lambda: self._live.update(Text(printable(line)), refresh=True))
            return
        now = self._now()
        if now >= self._next_s:
            self._next_s = now + self._every_s
            self.say(line)

    def say(self, text: str) -> None:
        """Write lines that stay: above the panel, or among the plain lines. Nothing when quiet."""
        safe = "\n".join(printable(line) for line in text.split("\n"))
        self._write(lambda: self._console.print(Text(safe), soft_wrap=True))

    def _write(self, write: Callable[[], None]) -> None:
        if self._quiet:
            return
        try:
            write()
        except OSError:
            self._console.quiet = True
        self._quiet = self._console.quiet


def plain_line(snapshot: Snapshot) -> str:
    """One snapshot as one line for a log."""
    parts = [
        f"{clock(snapshot.elapsed_s)} {snapshot.verdict.value}",
        f"probes {snapshot.probes_valid:,} valid, {sum(snapshot.probes_invalid.values()):,} invalid",
    ]
    if snapshot.k3:
        parts.append(f"k3 {nats(snapshot.k3[-1])}, max |d| {nats(snapshot.max_abs[-1])}")
    delivered = share(snapshot.delivered / snapshot.asked) if snapshot.asked else "-"
    parts.append(
        f"load {snapshot.delivered:,}/{snapshot.asked:,} ({delivered}), {snapshot.in_flight} in flight"
    )
    failed = {name: n for name, n in snapshot.outcomes.items() if name != "ok"}
    if any(failed.values()):
        parts.append(counts(failed))
    if snapshot.coverage:
        reached = sum(entry.state in REACHED for entry in snapshot.coverage)
        parts.append(f"coverage {reached}/{len(snapshot.coverage)}")
    if snapshot.phase:
        parts.insert(1, snapshot.phase)
    return " | ".join(parts)
