"""Tables of benches as Markdown, put between the markers of a page; what machine they are of."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from soak import __version__
from soak.bench.load.bench import machine


def head(command: str) -> str:
    """One line: command, version of soak, date, processor and packages."""
    about = machine()
    try:
        about["pysimdjson"] = version("pysimdjson")
    except PackageNotFoundError:
        about["pysimdjson"] = "none"
    said = ", ".join(value if name == "machine" else f"{name} {value}" for name, value in about.items())
    return f"`{command}`, soak {__version__}, {time.strftime('%Y-%m-%d', time.gmtime())}; {said}."


def put_between(page: Path, name: str, words: str) -> None:
    """Replaces what stands between the markers of that bench. Raises ValueError for a page without them."""
    begin, end = (f"<!-- soak bench {name}: {which} -->" for which in ("begin", "end"))
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page}: the lines {begin} and {end} are wanted in it")
    page.write_text(f"{before}{begin}\n\n{words}\n\n{end}{after}", encoding="utf-8")
