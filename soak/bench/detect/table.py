"""The figures as Markdown, for a terminal and for docs/detection.md. It computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from soak.bench.detect.aims import Aim
from soak.bench.detect.grading import Quantiles
from soak.bench.detect.outcome import RARE, FaultOutcome, Outcome
from soak.bench.detect.rules import PUBLIC_SAMPLES

HEAD = (
    "| fault | spoiled | score | exact: alarm | CORRUPT | by | production: alarm | in | tokens | CORRUPT "
    "| by | p0 | controls | k3 > 0.005 | > 0.0025 | CUSUM |"
)


def tables(found: Outcome, about: str, aims: list[Aim]) -> str:
    """Everything between the page's markers. about: command, versions and date, in words."""
    parts = [about, "", HEAD, "| --- " * 16 + "|", *(_row(f) for f in found.faults)]
    parts += [
        "",
        *_rare(found),
        "",
        *_clean(found),
        "",
        *_drifts(found),
        "",
        "| aim | met |",
        "| --- | --- |",
    ]
    parts += [f"| {aim.words} | {'yes' if aim.met else 'no: ' + '; '.join(aim.against)} |" for aim in aims]
    return "\n".join(line.rstrip() for line in parts)


def _row(fault: FaultOutcome) -> str:
    exact, production = fault.judged["exact"], fault.judged["production"]
    share = fault.signal.share + fault.signal.hard
    score = "null" if fault.signal.hard else "-" if share == 0 else f"{fault.signal.score:.2g}"
    if share and not fault.over_floor and not fault.signal.hard:
        score += ", under the floor"
    cells = [
        f"`{fault.scene}`",
        f"{share:.0%}",
        score,
        _two(exact.alarm),
        _two(exact.corrupt),
        _by(exact.channels),
        _two(production.alarm),
        f"{production.alarm.found:.0%}",
        _two(production.tokens),
        _two(production.corrupt),
        _by(production.channels),
        f"{max(production.p0.values()):.2g}" if production.p0 else "-",
        ", ".join(name.removeprefix("control-") for name in production.at_calibration) or "-",
        *(_two(held) for held in production.public),
        _two(production.cusum),
    ]
    return f"| {' | '.join(cells)} |"


def _rare(found: Outcome) -> list[str]:
    lines = [
        f"| {RARE:.0%} spoiled, production | alarm | in | CORRUPT | by | k3 > 0.005 | > 0.0025 "
        f"| > {found.quiet_threshold:.2g} | CUSUM |",
        "| --- " * 9 + "|",
    ]
    for fault in found.faults:
        rare = fault.rare
        if rare is not None:
            others = [*rare.public, rare.quiet, rare.cusum]
            cells = [_two(rare.alarm), f"{rare.alarm.found:.0%}", _two(rare.corrupt), _by(rare.channels)]
            cells += map(_two, others)
            lines.append(f"| `{fault.scene}` | {' | '.join(cells)} |")
    return lines


def _two(held: Quantiles) -> str:
    """Median (90th percentile); a dash where the record ended first."""
    if not math.isfinite(held.median):
        return "-"
    return f"{held.median:,.0f} ({held.p90:,.0f})" if math.isfinite(held.p90) else f"{held.median:,.0f} (-)"


def _by(channels: Mapping[str, int]) -> str:
    return max(channels, key=lambda name: channels[name]).removeprefix("ceiling-") if channels else "-"


def _clean(found: Outcome) -> list[str]:
    lines = [
        "| clean servers | probes | evidence, exact mode | ceilings | other alarms | probes over a ceiling "
        "| mean k3 > 0.005 | > 0.0025 | CUSUM |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for numerics, held in found.clean.items():
        for what, counted in (("recorded", held.recorded), ("extended", held.extended)):
            evidence = sum(n for c, n in counted.alarms.items() if c in ("absolute", "magnitude", "exact"))
            ceilings = sum(n for c, n in counted.alarms.items() if c.startswith("ceiling"))
            others = sum(counted.alarms.values()) - evidence - ceilings
            groups = counted.probes // PUBLIC_SAMPLES
            lines.append(
                f"| {numerics}, {what} | {counted.probes:,} | {evidence} | {ceilings} | {others} "
                f"| {sum(counted.over_ceiling.values())} | "
                + " | ".join(f"{n} of {groups:,}" for n in counted.public)
                + f" | {counted.cusum} |"
            )
    lines.append("")
    for length in found.clean["production"].run_lengths:
        lines.append(
            f"Measured on the production record: with A = {length.guaranteed:,.0f}, {length.alarms} of "
            f"{length.runs} runs of {length.steps:,} probes had a false alarm; mean run length at least "
            f"{length.mean:,.0f}, guaranteed {length.guaranteed:,.0f}."
        )
    return lines


def _drifts(found: Outcome) -> list[str]:
    lines = [
        "| drift, production | probes | over tau (last quarter) | p0 | mean score / largest | m0 | alarms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for held in found.drifts:
        alarms = ", ".join(f"{n} {c}" for c, n in held.alarms.items()) or "none"
        crossed = " (bound crossed)" if held.bound_crossed else ""
        lines.append(
            f"| {held.name.removeprefix('clean, ')} | {held.probes} | {held.exceeded:.1%} ({held.late:.1%}) "
            f"| {held.p0:.2g} | {held.mean:.2g} | {held.m0:.2g} | {alarms}{crossed} |"
        )
    return lines
