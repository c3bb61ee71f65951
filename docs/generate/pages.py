"""Which pages are made from code, and by what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.generate import alerts, commands, config
from soak.runners.page import page as faults

ROOT = Path(__file__).resolve().parents[2]

PAGES: dict[str, Callable[[], str]] = {
    "reference/config.md": config.page,
    "reference/cli.md": commands.page,
    "reference/alerts.md": alerts.page,
    "faults.md": faults,
}
"""Path below docs/ and the function that makes its text. docs/metrics.md is written by hand, and its table is
compared with the code by a test.
"""
