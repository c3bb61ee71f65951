"""A program as a child of the test: its words in a file, ended for sure, never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path


def free_port() -> int:
    """A loopback port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(what: str, condition: object, within_s: float = 30.0) -> object:
    """Wait for a callable to give something true, and return that. AssertionError with ``what`` in words."""
    assert callable(condition)
    deadline = time.monotonic() + within_s
    while True:
        got: object = condition()
        if got:
            return got
        assert time.monotonic() < deadline, f"{what}: not within {within_s:.0f} s"
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a GET gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Program:
    """Started by the constructor; ``words`` are what it said so far."""

    def __init__(
        self, name: str, command: Sequence[str | Path], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.name, self._command, self._env = name, [str(word) for word in command], {**os.environ, **env}
        self._log = folder / f"{name}.log"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._env
            )

    @property
    def words(self) -> str:
        """Everything it said, in all of its lives."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def says(self, pattern: str, within_s: float = 60.0, after: int = 0) -> re.Match[str]:
        """The first match in what it says, from the ``after``th character on."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.words[after:])
            assert found or self._process.poll() is None, f"{self.name} has ended:\n{self.words[-4000:]}"
            return found

        try:
            found = until(f"{self.name} says {pattern!r}", look, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it said:\n{self.words[-4000:]}") from None
        assert isinstance(found, re.Match)
        return found

    def kill(self) -> None:
        """No time to say goodbye."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As an operator stops it; killed if it takes longer than 15 s."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=15)
        self.kill()

    def start_again(self) -> None:
        """The same command once more."""
        assert self._process.poll() is not None, f"{self.name} still runs"
        self._process = self._start()
