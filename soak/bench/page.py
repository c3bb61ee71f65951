"""Tables of benches as Markdown between the markers of a page, under a line that says what they are of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from soak import __version__
from soak.bench.machine import today


def head(command: str, about: Mapping[str, str]) -> str:
    """One line: command, version of soak, day, and ``about``, as ``machine`` has it."""
    said = ", ".join(value if name == "machine" else f"{name} {value}" for name, value in about.items())
    return f"`{command}`, soak {__version__}, {today()}; {said}."


def put_between(page: Path, name: str, words: str) -> None:
    """Replaces what stands between the markers of that bench. Raises ValueError for a page without them."""
    begin, end = (f"<!-- soak bench {name}: {which} -->" for which in ("begin", "end"))
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page}: the lines {begin} and {end} are wanted in it")
    page.write_text(f"{before}{begin}\n\n{words}\n\n{end}{after}", encoding="utf-8")
