"""The known-fault table as a page for people: ``docs/faults.md`` is this function's output, word for word."""

from __future__ import annotations

from soak.runners.faults import FAULTS, KnownFault

HEAD = """# Known faults

Published cache bugs of LLM servers, what they need in order to show, and how to see them on a laptop. Every
row can be planted in the embedded simulator (`soak sim --fault NAME`, several with commas); there it arises
from the cause given here. With all conditions together it shows; with any one of them missing it does not,
which the test suite checks row by row. This page is made from `soak/runners/faults.py`.
"""


def page() -> str:
    """The whole page, Markdown."""
    published = [f for f in FAULTS if f.report]
    plain = [f for f in FAULTS if not f.report]
    parts = [HEAD, _table(published), *(_section(f) for f in published)]
    parts.append(
        "## Plain corruptions\n\nNot published bugs: what a detector must not miss, on any resume.\n"
    )
    parts.extend(_section(f, level=3) for f in plain)
    return "\n".join(parts)


def _table(faults: list[KnownFault]) -> str:
    rows = ["| fault | report | affected SGLang | fixed in | needs |", "| --- | --- | --- | --- | --- |"]
    for fault in faults:
        needs = ", ".join(c.name for c in fault.conditions)
        rows.append(
            f"| `{fault.name}` | {fault.report} | {fault.affected or '-'} | {fault.fixed or '-'} | {needs} |"
        )
    return "\n".join(rows) + "\n"


def _section(fault: KnownFault, level: int = 2) -> str:
    lines = [
        f"{'#' * level} `{fault.name}`",
        "",
        f"{fault.title[0].upper()}{fault.title[1:]}.",
        "",
        fault.cause,
    ]
    if fault.conditions:
        lines += ["", "Needs all of:", ""]
        lines += [f"- **{c.name}**: {c.words}" for c in fault.conditions]
    if fault.settings:
        told = ", ".join(f"`{key}={value}`" for key, value in fault.settings.items())
        lines += ["", f"The simulator is set to {told} when this fault is planted, unless told otherwise."]
    return "\n".join(lines) + "\n"
