"""One snapshot drawn as a rich panel of the terminal's width. Pure: a snapshot in, a renderable out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from soak.detect.verdict import KindCalibration, Verdict
from soak.drive.coverage_state import ConjunctionCoverage, CoverageState
from soak.export.closing import counts, nats, printable, share
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


def panel(snapshot: Snapshot, console: Console) -> RenderableType:
    """The whole display, at the console's width and in characters that it can write."""
    ascii_only = not console.encoding.lower().startswith("utf")
    inner = max(20, console.width - 18)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=10)
    grid.add_column(overflow="crop" if ascii_only else "ellipsis", no_wrap=True)
    grid.add_row("verdict", _verdict(snapshot))
    for alarm in snapshot.alarms[-2:]:
        grid.add_row("", Text(printable(alarm), style="red"))
    grid.add_row("evidence", _evidence(snapshot, min(30, inner - 30), ascii_only))
    for kind in snapshot.kinds:
        grid.add_row("", _calibration(kind))
    grid.add_row("k3", _divergence(snapshot.k3, snapshot.max_abs, inner - 34, ascii_only))
    if snapshot.control_k3:
        grid.add_row("control", _divergence(snapshot.control_k3, (), inner - 34, ascii_only))
    grid.add_row("probes", _probes(snapshot))
    grid.add_row("load", _load(snapshot))
    for number, row in enumerate(_coverage(snapshot.coverage, inner)):
        grid.add_row("coverage" if number == 0 else "", row)
    for number, event in enumerate(snapshot.events[-EVENTS_SHOWN:]):
        grid.add_row("events" if number == 0 else "", Text(printable(event), style="dim"))
    return Group(
        Panel(
            grid,
            title=_title(snapshot),
            title_align="left",
            subtitle=Text(f"{printable(snapshot.target)}  seed {snapshot.seed}", style="dim"),
            subtitle_align="left",
            box=box.ASCII if ascii_only else box.ROUNDED,
            border_style="red" if snapshot.verdict is Verdict.CORRUPT else "dim",
        )
    )


def _title(snapshot: Snapshot) -> Text:
    passed = clock(snapshot.elapsed_s)
    whole = f" of {clock(snapshot.duration_s)}" if snapshot.duration_s is not None else ""
    simulated = "  simulator" if snapshot.simulator else ""
    phase = f"  {snapshot.phase}" if snapshot.phase else ""
    return Text.assemble(("soak", "bold"), f"  {passed}{whole}{phase}{simulated}")


def _verdict(snapshot: Snapshot) -> Text:
    return Text(snapshot.verdict.value, style=VERDICT_STYLES[snapshot.verdict])


def _evidence(snapshot: Snapshot, width: int, ascii_only: bool) -> Text:
    filled = evidence_share(snapshot.log_evidence, snapshot.log_bar)
    if filled is None:
        return Text("no bar yet: calibrating", style="dim")
    evidence = snapshot.log_evidence
    strongest = "-" if evidence is None or not math.isfinite(evidence) else f"{evidence:.1f}"
    words = f"  {strongest} of {snapshot.log_bar:.1f} nats"
    return bar(filled, max(5, width), ascii_only=ascii_only).append(words)


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


def _load(snapshot: Snapshot) -> Text:
    ratio = snapshot.delivered / snapshot.asked if snapshot.asked else None
    text = Text(f"{snapshot.delivered:,} of {snapshot.asked:,} sent ({share(ratio)})")
    text.append(f"  {snapshot.in_flight:,} in flight")
    failed = {name: n for name, n in snapshot.outcomes.items() if name != "ok"}
    text.append(f"  {snapshot.outcomes.get('ok', 0):,} ok", style="green")
    return text.append(f"  {counts(failed)}", style="yellow") if any(failed.values()) else text


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
