"""The real Prometheus and Alertmanager, as ``fetch.sh`` found them, and what versions they are."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

KIT = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "soak"
LEAST = {"prometheus": (2, 42), "promtool": (2, 42), "alertmanager": (0, 25), "amtool": (0, 25)}


@dataclass(frozen=True, slots=True)
class Tools:
    """Paths of the programs, and the versions they state."""

    prometheus: Path
    promtool: Path
    alertmanager: Path
    amtool: Path
    versions: dict[str, tuple[int, int]]

    @property
    def converts_histograms(self) -> bool:
        """Whether this Prometheus can keep a classic histogram as a native one beside it."""
        return self.versions["prometheus"] >= (3, 0)

    @property
    def reads_address_from_file(self) -> bool:
        """Whether this Alertmanager can take a webhook's address from a file."""
        return self.versions["alertmanager"] >= (0, 26)


@functools.cache
def tools() -> Tools:
    """Fetched on the first call. Raises AssertionError, with what was said, where there is none."""
    folder = CACHE / "stack"
    done = subprocess.run(
        [str(KIT / "fetch.sh"), str(folder)], check=False, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.findall(r"^(\w+), version (\d+)\.(\d+)", done.stdout, re.MULTILINE)
    programs = folder / "bin"
    return Tools(
        programs / "prometheus",
        programs / "promtool",
        programs / "prometheus-alertmanager",
        programs / "amtool",
        {name: (int(major), int(minor)) for name, major, minor in found},
    )


def said(*words: str | Path, cwd: Path | None = None) -> str:
    """What a program says; AssertionError with its words if it fails."""
    done = subprocess.run(
        [str(w) for w in words], check=False, capture_output=True, text=True, timeout=120, cwd=cwd
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
