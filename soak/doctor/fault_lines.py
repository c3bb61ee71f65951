"""Lines on published faults and on what load can reach here: which shapes are worth their tokens, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from soak.doctor.finding import Line, ok, warn
from soak.doctor.reads import Reads
from soak.drive.conjunctions import CONJUNCTIONS, Conjunction
from soak.drive.coverage import needed_by
from soak.plan.geometry import Geometry
from soak.plan.shapes import DISRUPTIVE, SHAPES
from soak.runners.answer import FIXED
from soak.runners.exposure import Exposed, Exposure, exposures
from soak.runners.faults import BY_NAME, KnownFault
from soak.runners.flags import SERVER_FLAGS, Words
from soak.runners.record import Record


@dataclass(frozen=True, slots=True)
class Faults:
    """exposed, possible: what the version and the flags leave open; judged: all of them, for scripts."""

    lines: tuple[Line, ...]
    names: frozenset[str]
    judged: tuple[dict[str, Any], ...]


def fault_lines(reads: Reads, record: Record | None = None) -> Faults:
    """The known faults on this server. For a simulator: those planted, as its version is nobody's.

    record: what ``soak runners check`` said of the server's installation; believed if it is of its version.
    """
    if reads.info.get("simulator"):
        return _planted(reads.info.get("simulator_faults"))
    version = str(reads.info.get("version", "unknown"))
    believed = record is not None and record.version.partition("+")[0] == version.partition("+")[0]
    judged = exposures(version, reads.said, _mended(record) if record is not None and believed else ())
    exposed = [e for e in judged if e.exposure is Exposure.EXPOSED]
    possible = [e for e in judged if e.exposure is Exposure.POSSIBLE]
    lines = [] if record is None else [_record(record, version, believed=believed)]
    lines += [
        warn(_number(e.fault), f"{e.fault.name}: {e.fault.title} ({e.why})", _step(e.fault)) for e in exposed
    ]
    if possible:
        named = "; ".join(f"{e.fault.name} ({e.fault.report}: {e.why})" for e in possible)
        lines.append(warn("possible", f"not ruled out: {named}", "soak it: nobody has looked here"))
    ruled = sum(e.exposure is Exposure.RULED_OUT for e in judged)
    fixed = sum(e.exposure is Exposure.FIXED for e in judged)
    lines.append(
        ok("others", f"of {len(judged)} published: {fixed} fixed here, {ruled} ruled out by its flags")
    )
    return Faults(
        tuple(lines),
        frozenset(e.fault.name for e in (*exposed, *possible)),
        tuple(_row(e) for e in judged),
    )


def _number(fault: KnownFault) -> str:
    """The report's number, by which people know a fault."""
    found = re.search(r"#\d+", fault.report)
    return found[0] if found else "planted"


def _mended(record: Record) -> list[str]:
    return [name for name, state in record.states.items() if state == FIXED]


def _record(record: Record, version: str, *, believed: bool) -> Line:
    if believed:
        named = ", ".join(_mended(record)) or "no fix"
        return ok("record", f"the installation was read: it carries {named}")
    return warn(
        "record",
        f"of SGLang {record.version or 'no version'}, and the server says {version}: not believed",
        "name the record of the image that the server runs from (`soak runners check --json` writes one)",
    )


def _step(fault: KnownFault) -> str:
    return fault.advice or "docs/faults.md says what it takes to show"


def _row(exposed: Exposed) -> dict[str, Any]:
    return {
        "name": exposed.fault.name,
        "report": exposed.fault.report,
        "exposure": exposed.exposure.value,
        "why": exposed.why,
    }


def _planted(value: object) -> Faults:
    names = [name for name in value if name in BY_NAME] if isinstance(value, list) else []
    if not names:
        return Faults((ok("planted", "none: the simulator is healthy"),), frozenset(), ())
    lines = tuple(
        warn(_number(BY_NAME[name]), f"{name}, planted: {BY_NAME[name].title}", "a soak is to find it")
        for name in names
    )
    rows = tuple(
        {"name": n, "report": BY_NAME[n].report, "exposure": Exposure.EXPOSED.value, "why": "planted"}
        for n in names
    )
    return Faults(lines, frozenset(names), rows)


def shape_lines(
    geometry: Geometry, said: Words, open_faults: frozenset[str]
) -> tuple[list[Line], list[dict[str, Any]]]:
    """Which shapes make sense on this server, and which conjunctions cannot hold on it; as rows, too.

    A conjunction cannot hold where its geometry does not allow it, or where a condition that the server's
    own flags decide is off. A shape makes sense unless all its conjunctions are out.
    """
    out = {c.name: why for c in CONJUNCTIONS if (why := _ruled_out(c, geometry, said))}
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        mine = [c for c in CONJUNCTIONS if c.reached_by == shape]
        reachable = [c for c in mine if c.name not in out]
        conditions = {name for c in reachable for name in c.conditions} - {"prefix_hit"}  # any hit will do
        rows.append(
            {
                "shape": shape,
                "disruptive": shape in DISRUPTIVE,
                "makes_sense": bool(reachable) or not mine,
                "conjunctions": [c.name for c in reachable],
                "not_applicable": {c.name: out[c.name] for c in mine if c.name in out},
                "faults": sorted(open_faults & set(needed_by(tuple(conditions)))),
            }
        )
    lines = [_worthwhile(rows)]
    aimed_at = [f"{row['shape']} ({', '.join(row['faults'])})" for row in rows if row["faults"]]
    if aimed_at:
        lines.append(ok("aimed", f"at what is open above: {'; '.join(aimed_at)}"))
    if out:
        lines.append(ok("not-applicable", "; ".join(f"{name} ({why})" for name, why in out.items())))
    return lines, rows


def _ruled_out(conjunction: Conjunction, geometry: Geometry, said: Words) -> str:
    """Why it cannot hold here, empty if it can."""
    off = [
        SERVER_FLAGS[name].words
        for name in conjunction.conditions
        if name in SERVER_FLAGS and SERVER_FLAGS[name].reads(said) is False
    ]
    if off:
        return f"needs {' and '.join(off)}"
    if conjunction.applicable(geometry):
        return ""
    if geometry.chunk >= geometry.context_len - 1:
        return f"no prompt is longer than a chunk of {geometry.chunk:,} tokens"
    return f"not on {'a hybrid' if geometry.hybrid else 'an attention-only'} model of this geometry"


def _worthwhile(rows: list[dict[str, Any]]) -> Line:
    useful = [
        f"{row['shape']} (disruptive)" if row["disruptive"] else row["shape"]
        for row in rows
        if row["makes_sense"]
    ]
    useless = [row["shape"] for row in rows if not row["makes_sense"]]
    if useless:
        return ok(
            "shapes",
            f"{', '.join(useful) or 'none'}; these would reach nothing here: {', '.join(useless)}",
        )
    return ok("shapes", f"all make sense: {', '.join(useful)}")
