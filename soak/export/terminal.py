"""The live display of a running soak: a panel on a terminal, a line every few seconds elsewhere, or nothing.

It only shows snapshots. It must never write to anything but its own stream, and never measure by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from soak.export.closing import counts, nats, share
from soak.export.panel import REACHED, clock, panel
from soak.export.snapshot import Snapshot


class Terminal:
    """Shows snapshots on ``stream``. Use as a context manager around the run, and call ``show`` often.

    live: a panel redrawn in place; None finds out whether the stream is a terminal that can do that.
    quiet: nothing at all. plain_every_s: seconds between lines where there is no panel.
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
        self._console = Console(file=stream, highlight=False, force_terminal=live)
        wanted = stream.isatty() and not self._console.is_dumb_terminal if live is None else live
        self._quiet = quiet
        self._live = Live(console=self._console, auto_refresh=False) if wanted and not quiet else None
        self._every_s, self._now = plain_every_s, now
        self._next_s = float("-inf")
        self._last_verdict = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the panel; or write a line when it is time for one or the verdict has changed."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(panel(snapshot, self._console), refresh=True)
            return
        now = self._now()
        if now >= self._next_s or snapshot.verdict.value != self._last_verdict:
            self._next_s = now + self._every_s
            self._last_verdict = snapshot.verdict.value
            self._write(plain_line(snapshot))

    def say(self, text: str) -> None:
        """Write lines that stay: above the panel, or among the plain lines. Nothing when quiet."""
        if not self._quiet:
            self._write(text)

    def _write(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


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
