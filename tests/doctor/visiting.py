"""How the tests look at a server, and find a line again."""

from __future__ import annotations

from typing import Any

from soak import config as configs
from soak.doctor.finding import Line, Mark, Report
from soak.doctor.look import Wanted, look

TRIED = ("namespaces", "cold-pass", "warm-pass", "logprobs", "agreement")


def wanted(
    url: str,
    *,
    key: str | None = None,
    may_try: bool = True,
    limit_s: float = 60.0,
    **sections: dict[str, Any],
) -> Wanted:
    values: dict[str, Any] = {"target": {"url": url}}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Wanted(
        config=configs.build(values),
        key=key,
        may_try=may_try,
        why_not="not this machine",
        how="repeat with --allow-load",
        limit_s=limit_s,
        controls_needed=60,
    )


async def visit(url: str, **given: Any) -> Report:
    return await look(wanted(url, **given))


def line(report: Report, name: str) -> Line:
    found = [one for group in report.groups for one in group.lines if one.name == name]
    assert len(found) == 1, (name, [one.name for group in report.groups for one in group.lines])
    return found[0]


def mark(report: Report, name: str) -> Mark:
    return line(report, name).mark
