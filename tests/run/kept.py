"""Waiting for what a run or a calibration has put into its state file."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kept(state: Path) -> list[dict[str, Any]]:
    """The detectors' states in the file, none while it is not there yet."""
    try:
        with sqlite3.connect(f"file:{state}?mode=ro", uri=True) as db:
            return [json.loads(blob) for (blob,) in db.execute("SELECT state FROM evidence")]
    except sqlite3.OperationalError:
        return []


def controls(held: dict[str, Any]) -> int:
    """Controls of all kinds."""
    return sum(book["calibration"]["count"] for book in held["books"].values())


def calibrated(held: dict[str, Any], kind: str) -> bool:
    """Whether the bounds of a kind hold."""
    book = held["books"].get(kind)
    return book is not None and book["calibration"]["bounds"] is not None


async def until_kept(
    task: asyncio.Task[Any], state: Path, holds: Callable[[dict[str, Any]], bool], within_s: float = 60.0
) -> None:
    """Wait until what is kept is as wanted, while the task is at it."""
    async with asyncio.timeout(within_s):
        while not task.done():
            if any(map(holds, kept(state))):
                return
            await asyncio.sleep(0.2)
    raise AssertionError("it ended by itself")
