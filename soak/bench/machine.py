"""What figures of a bench are of: the machine, its packages, the day."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version


def machine() -> dict[str, str]:
    """What the figures are of: processor, cores, Python, packages, load."""
    said = {"machine": f"{os.cpu_count()} cores, {_processor()}", "Python": platform.python_version()}
    said |= {package: installed(package) for package in ("aiohttp", "uvloop", "orjson", "numpy")}
    return said | {"load average at the start": f"{os.getloadavg()[0]:.1f}"}


def installed(package: str) -> str:
    """Its version, or none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def today() -> str:
    """The day in UTC, such as 2026-12-01."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
