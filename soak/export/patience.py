"""A sign of life for whatever takes longer than two seconds: a line redrawn in place, or one now and then.

It shows what it is told and how long that has taken. It must never write to anything but its own stream, and
never hold up or end what it watches: a stream that breaks makes it quiet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from soak.export.closing import printable
from soak.export.panel import clock

FIRST_S = 2.0
_REDRAW_S = 0.5
_LINE_EVERY_S = 10.0
_CLEAR = "\r\x1b[2K"


class Patience:
    """Use as a context manager around the work. ``detail``: more words of now, asked for at each showing.

    live: redraw in place; None finds out whether the stream is a terminal. quiet: nothing at all.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        live: bool | None = None,
        columns: int = 79,
        line_every_s: float = _LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._quiet, self._columns, self._clock = stream, quiet, columns, clock
        self._live = stream.isatty() if live is None else live
        self._line_every_s = line_every_s
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._words, self._since_s, self._drawn = "", clock(), False
        self._next_s = 0.0
        self._detail: Callable[[], str] = lambda: ""
        self._thread = threading.Thread(target=self._watch, name="patience", daemon=True)

    def __enter__(self) -> Self:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._wipe()

    def now(self, words: str, detail: Callable[[], str] = lambda: "") -> None:
        """What is going on from here on."""
        with self._lock:
            self._words, self._detail, self._since_s = words, detail, self._clock()
            self._next_s = self._line_every_s

    def say(self, words: str) -> None:
        """Lines that stay, the last of them also as what is going on."""
        with self._lock:
            self._wipe()
            for line in words.splitlines():
                self._write(f"{printable(line)}\n")
            if words.strip():
                self._words, self._since_s = words.splitlines()[-1], self._clock()
                self._next_s = self._line_every_s

    def _watch(self) -> None:
        while not self._over.wait(_REDRAW_S):
            with self._lock:
                self.show()

    def show(self) -> None:
        """Redraw, or write a line if it is time for one; called by the thread that waits."""
        took = self._clock() - self._since_s
        if took < FIRST_S or not self._words:
            return
        detail = self._detail()
        line = printable(f"{clock(took)} {self._words}" + (f"; {detail}" if detail else ""))
        if self._live:
            self._write(f"{_CLEAR}{line[: self._columns]}")
            self._drawn = True
        elif took >= self._next_s:
            self._next_s = took + self._line_every_s
            self._write(f"{line}\n")

    def _wipe(self) -> None:
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def _write(self, words: str) -> None:
        if self._quiet:
            return
        try:
            self._stream.write(words)
            self._stream.flush()
        except (OSError, ValueError):
            self._quiet = True  # nobody is there to be told
