"""From a run's folder to its report.html: whole or not at all, and every refusal in words."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from soak.report.drawing import PlotsUnavailable, need_plots
from soak.report.page import REPORT_NAME, page
from soak.report.run_folder import NotARun, read_run_folder

__all__ = ["NotARun", "PlotsUnavailable", "write_report"]


def write_report(folder: Path, to: Path | None = None) -> Path:
    """Make the report of the run in ``folder``; where it is. Raises NotARun, PlotsUnavailable, OSError."""
    need_plots()
    run = read_run_folder(folder)
    try:
        whole = page(run)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise NotARun(
            f"{folder}: its summary is not as a run writes it ({type(error).__name__}: {error}); was it "
            "edited, or made by another soak?"
        ) from error
    place = to or folder / REPORT_NAME
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        part.write_text(whole, encoding="utf-8", errors="replace")
        part.replace(place)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return place
