"""The known-fault table as a page for people: ``docs/faults.md`` is this function's output, word for word."""

from __future__ import annotations

from soak.runners.answer import FIXED, NOT_APPLICABLE, VULNERABLE
from soak.runners.faults import FAULTS, RELEASES, KnownFault

HEAD = """# Known faults

Published cache bugs of LLM servers, what they need in order to show, and how to see them on a laptop. Every
row can be planted in the embedded simulator (`soak sim --fault NAME`, several with commas); there it arises
from the cause given here. With all conditions together it shows; with any one of them missing it does not,
which the test suite checks row by row. This page is made from `soak/runners/faults.py`.

What an installed SGLang has of these can be read from its source: `soak runners check`
([how, and what to do](server-image.md)).
"""

READ = """## By release

Read from the published wheels, and checked against them by `make test-runners`. **had**: the faulty code is
there without a whole fix; fixed: it is fixed; -: that release never had it.
"""


def page() -> str:
    """The whole page, Markdown."""
    published = [f for f in FAULTS if f.report]
    plain = [f for f in FAULTS if not f.report]
    parts = [HEAD, _table(published), READ, _by_release(published), *(_section(f) for f in published)]
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


_WORDS = {VULNERABLE: "**had**", FIXED: "fixed", NOT_APPLICABLE: "-"}


def _by_release(faults: list[KnownFault]) -> str:
    rows = [f"| fault | number | {' | '.join(RELEASES)} |", f"| --- | --- |{' --- |' * len(RELEASES)}"]
    for fault in faults:
        if fault.releases:
            states = " | ".join(_WORDS[fault.releases[release]] for release in RELEASES)
            rows.append(f"| `{fault.name}` | {fault.number} | {states} |")
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
    if fault.advice:
        lines += ["", f"On a server that has it: {fault.advice[0].lower() + fault.advice[1:]}"]
    if fault.settings:
        told = ", ".join(f"`{key}={value}`" for key, value in fault.settings.items())
        lines += ["", f"The simulator is set to {told} when this fault is planted, unless told otherwise."]
    return "\n".join(lines) + "\n"
