"""One snapshot drawn as a rich panel of the terminal's width. Pure: a snapshot in, a renderable out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from soak.detect.verdict import KindCalibration, Verdict
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.export.closing import VERDICT_SENTENCES, counts, nats, printable, share
from soak.export.snapshot import Snapshot

VERDICT_STYLES = {
    Verdict.CALIBRATING: "bold cyan",
    Verdict.CLEAN: "bold green",
    Verdict.SUSPECT: "bold yellow",
    Verdict.CORRUPT: "bold white on red",
    Verdict.VACUOUS: "bold magenta",
}
STATE_STYLES = {
    CoverageState.CONFIRMED: "green",
    CoverageState.PRESUMED: "cyan",
    CoverageState.NOT_REACHED: "yellow",
    CoverageState.UNOBSERVABLE: "dim",
    CoverageState.NOT_APPLICABLE: "dim",
}
REACHED = (CoverageState.PRESUMED, CoverageState.CONFIRMED)

SPARK = "▁▂▃▄▅▆▇█"
SPARK_ASCII = "_.-:=+*#"
SPARK_FLOOR, SPARK_TOP = 1e-8, 10.0
EVENTS_SHOWN = 4
STREAMS_SHOWN = 3
NARROW = 60
"""Columns under which words are shortened."""


def clock(seconds: float) -> str:
    """``0:07``, ``12:34``, ``3:05:09``, ``6d 3:05:09``."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    short = f"{hours}:{minutes:02d}:{left:02d}" if hours or days else f"{minutes}:{left:02d}"
    return f"{days}d {short}" if days else short


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The last ``width`` values in nats on a fixed logarithmic scale, so that runs look alike.

    A dot is an exact zero; the lowest step is anything up to 1e-8, the highest is 10 and more.
    """
    steps = SPARK_ASCII if ascii_only else SPARK
    span = math.log(SPARK_TOP / SPARK_FLOOR)
    out = []
    for value in values[-width:] if width > 0 else ():
        if value == 0.0:
            out.append(" " if ascii_only else "·")
            continue
        height = math.log(min(max(value, SPARK_FLOOR), SPARK_TOP) / SPARK_FLOOR) / span
        out.append(steps[min(int(height * len(steps)), len(steps) - 1)])
    return "".join(out)


def evidence_share(log_evidence: float | None, log_bar: float | None) -> float | None:
    """How far the strongest stream's log evidence is on its way to the bar, in [0, 1]; None without a bar."""
    if log_bar is None or log_bar <= 0.0:
        return None
    if log_evidence is None or math.isnan(log_evidence):
        return 0.0
    return min(max(log_evidence / log_bar, 0.0), 1.0)


def bar(filled: float, width: int, *, ascii_only: bool = False) -> Text:
    """A horizontal bar; red from nine tenths on."""
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    cells = round(filled * width)
    style = "red" if filled >= 0.9 else "yellow" if filled >= 0.5 else "green"
    return Text.assemble((full * cells, style), (empty * (width - cells), "dim"))


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the panel. rank: the higher, the sooner it is left out where lines are few."""

    rank: int
    label: str
    words: Text


def panel(snapshot: Snapshot, console: Console) -> RenderableType:
    """The whole display, at the console's size and in characters that it can write.

    Where there are more rows than lines, those that can be missed best are left out.
    """
    ascii_only = not console.encoding.lower().startswith("utf")
    narrow = console.width < NARROW
    grid = Table.grid(padding=(0, 1 if narrow else 2))
    grid.add_column(style="dim", no_wrap=True, min_width=8 if narrow else 10)
    grid.add_column(overflow="crop" if ascii_only else "ellipsis", no_wrap=True)
    inner = max(20, console.width - (14 if narrow else 18))
    rows = _rows(snapshot, inner, narrow=narrow, ascii_only=ascii_only)
    room = max(3, console.size.height - 3)  # the border, and the line that the cursor stands on
    kept = set(sorted(range(len(rows)), key=lambda place: (rows[place].rank, place))[:room])
    last = ""
    for place, row in enumerate(rows):
        if place in kept:
            grid.add_row("" if row.label == last else row.label, row.words)
            last = row.label
    return Group(
        Panel(
            grid,
            title=_title(snapshot, narrow),
            title_align="left",
            subtitle=Text(f"{printable(snapshot.target)}  seed {snapshot.seed}", style="dim"),
            subtitle_align="left",
            box=box.ASCII if ascii_only else box.ROUNDED,
            border_style="red" if snapshot.verdict is Verdict.CORRUPT else "dim",
        )
    )


def _rows(snapshot: Snapshot, inner: int, *, narrow: bool, ascii_only: bool) -> list[_Row]:
    """Everything that there is to show, from top to bottom."""
    spark = inner - (10 if narrow else 34)
    rows = [_Row(0, "verdict", _verdict(snapshot, inner))]
    rows += [_Row(1, "alarm", Text(printable(alarm), style="red")) for alarm in snapshot.alarms[-1:]]
    rows += [_Row(6, "alarm", Text(printable(alarm), style="red")) for alarm in snapshot.alarms[-2:-1]]
    rows.append(_Row(1, "evidence", _evidence(snapshot, min(30, inner - (18 if narrow else 30)), ascii_only)))
    if len(snapshot.streams) > 1:
        rows += [
            _Row(6, "evidence", _stream(name, value, snapshot, inner, ascii_only))
            for name, value in snapshot.streams[:STREAMS_SHOWN]
        ]
    rows += [_Row(4, "evidence", _calibration(kind)) for kind in snapshot.kinds]
    rows.append(
        _Row(1, "k3", _divergence(snapshot.k3, () if narrow else snapshot.max_abs, spark, ascii_only))
    )
    if snapshot.control_k3:
        rows.append(_Row(3, "control", _divergence(snapshot.control_k3, (), spark, ascii_only)))
    rows.append(_Row(2, "probes", _probes(snapshot)))
    rows.append(_Row(1, "load", _load(snapshot, narrow)))
    if snapshot.budgets:
        rows.append(_Row(2, "budget", _budgets(snapshot.budgets, narrow, ascii_only)))
    if snapshot.coverage:
        rows.append(_Row(1, "coverage", _reached(snapshot.coverage)))
        rows += [_Row(7, "coverage", row) for row in _coverage(snapshot.coverage, inner)]
    for age, event in reversed(list(enumerate(reversed(snapshot.events[-EVENTS_SHOWN:])))):
        rows.append(_Row((3, 5, 5, 8)[age], "events", Text(printable(event), style="dim")))
    return rows


def _title(snapshot: Snapshot, narrow: bool) -> Text:
    passed = clock(snapshot.elapsed_s)
    whole = f" of {clock(snapshot.duration_s)}" if snapshot.duration_s is not None else ""
    simulated = "  simulator" if snapshot.simulator and not narrow else ""
    phase = f"  {snapshot.phase}" if snapshot.phase else ""
    return Text.assemble(("soak", "bold"), f"  {passed}{whole}{phase}{simulated}")


def _verdict(snapshot: Snapshot, inner: int) -> Text:
    text = Text.assemble((snapshot.verdict.value, VERDICT_STYLES[snapshot.verdict]))
    sentence = f"  {VERDICT_SENTENCES[snapshot.verdict.value]}"
    return text.append(sentence, style="dim") if text.cell_len + len(sentence) <= inner else text


def _evidence(snapshot: Snapshot, width: int, ascii_only: bool) -> Text:
    filled = evidence_share(snapshot.log_evidence, snapshot.log_bar)
    if filled is None:
        return Text("no bar yet: calibrating", style="dim")
    evidence = snapshot.log_evidence
    strongest = "-" if evidence is None or not math.isfinite(evidence) else f"{evidence:.1f}"
    words = f"  {strongest} of {snapshot.log_bar:.1f} nats"
    return bar(filled, max(5, width), ascii_only=ascii_only).append(words)


def _stream(name: str, value: float, snapshot: Snapshot, inner: int, ascii_only: bool) -> Text:
    """One stream's own part of the evidence."""
    filled = evidence_share(value, snapshot.log_bar) or 0.0
    words = f"  {value:.1f}  {printable(name)}"
    return bar(filled, min(30, max(5, inner - 30)), ascii_only=ascii_only).append(words, style="dim")


def _calibration(kind: KindCalibration) -> Text:
    progress = (
        f"{kind.controls:,} controls"
        if kind.ready
        else f"{kind.controls:,}/{kind.controls_needed:,} controls"
    )
    text = Text(f"{kind.kind}: {kind.mode}, {progress}", style="dim")
    return text.append(f", p0 {kind.p0:.2g}") if kind.p0 is not None else text


def _divergence(k3: Sequence[float], max_abs: Sequence[float], width: int, ascii_only: bool) -> Text:
    if not k3:
        return Text("no valid probe yet", style="dim")
    text = Text(sparkline(k3, max(8, width), ascii_only=ascii_only)).append(f"  {nats(k3[-1])}")
    return text.append(f"  max |d| {nats(max_abs[-1])} nats", style="dim") if max_abs else text


def _probes(snapshot: Snapshot) -> Text:
    text = Text(f"{snapshot.probes_valid:,} valid")
    if snapshot.probes_invalid:
        text.append(f"  invalid: {counts(snapshot.probes_invalid)}", style="yellow")
    if snapshot.victims_evicted:
        text.append(f"  {snapshot.victims_evicted:,} victims evicted", style="dim")
    return text


def _load(snapshot: Snapshot, narrow: bool) -> Text:
    ratio = snapshot.delivered / snapshot.asked if snapshot.asked else None
    if narrow:
        text = Text(f"{snapshot.delivered:,}/{snapshot.asked:,} sent {share(ratio)}")
    else:
        text = Text(f"{snapshot.delivered:,} of {snapshot.asked:,} sent ({share(ratio)})")
        text.append(f"  {snapshot.in_flight:,} in flight")
    failed = {name: n for name, n in snapshot.outcomes.items() if name != "ok"}
    text.append(f"  {snapshot.outcomes.get('ok', 0):,} ok", style="green")
    return text.append(f"  {counts(failed)}", style="yellow") if any(failed.values()) else text


def _budgets(used: Mapping[str, float], narrow: bool, ascii_only: bool) -> Text:
    """Each budget with how much of it is in use, the fullest first."""
    text = Text()
    for name, ratio in sorted(used.items(), key=lambda pair: -pair[1]):
        text.append("   " if text else "").append(f"{name} ")
        if not narrow:
            text.append_text(bar(min(max(ratio, 0.0), 1.0), 8, ascii_only=ascii_only)).append(" ")
        text.append(f"{min(ratio, 9.99):.0%}", style="yellow" if ratio >= 0.9 else "")
    return text


def _reached(entries: Sequence[ConjunctionCoverage]) -> Text:
    """How many of those that can be told were reached, and which of them were not."""
    told = [e for e in entries if e.state is not CoverageState.NOT_APPLICABLE]
    missing = [e.name for e in told if e.state not in REACHED]
    text = Text(f"{len(told) - len(missing)} of {len(told)} reached")
    return text.append(f"  not {', '.join(missing)}", style="yellow") if missing else text


def _coverage(entries: Sequence[ConjunctionCoverage], width: int) -> list[Text]:
    """Conjunctions that can be told, each ``name state count``, several to a line where they fit."""
    lines: list[Text] = []
    for entry in entries:
        if entry.state is CoverageState.NOT_APPLICABLE:
            continue
        cell = Text.assemble(entry.name, " ", (entry.state.value, STATE_STYLES[entry.state]))
        if entry.count:
            cell.append(f" {entry.count:,}x", style="dim")
        if lines and lines[-1].cell_len + 3 + cell.cell_len <= width:
            lines[-1].append("   ").append_text(cell)
        else:
            lines.append(cell)
    return lines
