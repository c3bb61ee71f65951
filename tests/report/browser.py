"""A real browser without a screen: what it makes of a page, and what it complains about."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MOST_S = 180.0


def browser() -> str:
    """Its path; on a Debian that is ours it is installed if missing. Raises RuntimeError."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *words], check=True, capture_output=True, env=environment)
        found = shutil.which("chromium")
    if found is None:
        raise RuntimeError("this tier wants Chromium: install it (Debian: apt-get install chromium)")
    return found


@dataclass(frozen=True)
class Shown:
    """dom: the page after its scripts have run; complaints: what was written to the console."""

    dom: str
    complaints: list[str]


class Browser:
    """Chromium with a profile of its own in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._words = [
            *(browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--hide-scrollbars", "--no-first-run", "--enable-logging=stderr", "--log-level=0"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}"),
        ]

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._words, *words], capture_output=True, text=True, timeout=_MOST_S, check=True
        )

    def show(self, page: Path) -> Shown:
        """Load it, run its scripts, and say what came of it."""
        done = self._run("--dump-dom", page.as_uri())
        return Shown(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])

    def picture(
        self, page: Path, to: Path, *, width: int = 1000, height: int = 1400, dark: bool = False
    ) -> Path:
        """A PNG of its top."""
        theme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        self._run(*theme, f"--window-size={width},{height}", f"--screenshot={to}", page.as_uri())
        return to

    def print(self, page: Path, to: Path) -> Path:
        """A PDF of it."""
        self._run("--no-pdf-header-footer", f"--print-to-pdf={to}", page.as_uri())
        return to
