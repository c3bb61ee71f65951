"""The plots of a report, each one the answer to a question. Draws what it is given; decides nothing.

No series is told by colour alone: lines differ in dash and marker too, and cells carry their figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from soak.export.course import OFFSETS, Bin, ByKind
from soak.report.drawing import ALARM, CONTROL, FAINT, INK, PROBE, SECOND, draw
from soak.report.markup import Safe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TOP = ("data", "axes fraction")

Times = Sequence[tuple[float, Bin]]
"""(seconds from the start to the middle of a bin, the bin), with nothing where nothing ran."""

_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))
_RESUMES = {
    "prefill": "written by prefill",
    "decode": "written by decode",
    "host": "loaded from the host",
    "retracted": "after a retraction",
}
_LEAST = -4.0  # nats of evidence; less is as good as none
_VERDICTS = {"CORRUPT": ALARM, "SUSPECT": SECOND, "CLEAN": PROBE}


def unit(longest_s: float) -> tuple[float, str]:
    """Seconds of the unit that suits a time axis, and its name."""
    return next(((size, name) for least, size, name in _UNITS if longest_s >= least), (1.0, "seconds"))


def _series(times: Times, width_s: float, name: str) -> tuple[list[float], list[float]]:
    """Values over time with NaN between bins that do not touch, so that no line bridges a gap."""
    x: list[float] = []
    y: list[float] = []
    for at_s, held in times:
        if x and at_s - x[-1] > 1.5 * width_s:
            x.append(x[-1] + width_s)
            y.append(math.nan)
        x.append(at_s)
        value = held.values.get(name)
        y.append(math.nan if value is None else float(value))
    return x, y


def _time_axis(axes: Axes, times: Times, width_s: float) -> None:
    end = max((at_s for at_s, _ in times), default=1.0) + width_s / 2
    size, name = unit(end)
    axes.set_xlim(0, end)
    step = _step(end / size)
    ticks = np.arange(0, end / size + 1e-9, step)
    axes.set_xticks(ticks * size, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(f"{name} since the start")


def _step(span: float) -> float:
    base = 10.0 ** math.floor(math.log10(max(span, 1e-9) / 5))
    return next(base * k for k in (1, 2, 5, 10) if span / (base * k) <= 8)


def _gone(axes: Axes, times: Times, width_s: float) -> None:
    """Shade the times without the server, with words on the first."""
    first = True
    for at_s, held in times:
        if held.values.get("gone"):
            axes.axvspan(at_s - width_s / 2, at_s + width_s / 2, color=FAINT, alpha=0.25, lw=0)
            if first:
                axes.annotate(
                    "no server", (at_s, 1.0), xycoords=("data", "axes fraction"), va="bottom", size=8
                )
            first = False


def offsets(kinds: Mapping[str, ByKind]) -> Safe:
    """|d| by place after the resume boundary, a panel for each resume kind that was probed."""
    shown = [(name, kind) for name, kind in sorted(kinds.items()) if kind.offsets["probe"]]
    across = min(3, len(shown))
    rows = -(-len(shown) // across)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(rows, across, sharey=True, squeeze=False).ravel()
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        floor = _floor([kind for _, kind in shown])
        for axes, (name, kind) in zip(panels[: len(shown)], shown, strict=True):
            _offset_panel(axes, kind, floor)
            axes.set_title(f"{_RESUMES.get(name, name)}, {kind.scores['probe'].count:,} probes")
            axes.set_xlabel("token after the resume boundary")
        panels[0].set_ylabel("|warm - cold|, nats")
        low, high = panels[0].get_ylim()
        decades = [10.0**e for e in range(math.ceil(math.log10(low * 3)), math.floor(math.log10(high)) + 1)]
        every = max(1, math.ceil(len(decades) / 6))
        panels[0].set_yticks(
            [floor, *decades[::-1][::every]], ["0", *(f"{d:g}" for d in decades[::-1][::every])]
        )
        panels[0].minorticks_off()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4)

    return draw(
        "offsets",
        "How far off, by place after the resume boundary",
        "Lines of the median, the ninth decile and the maximum of probes over a band from the median to the "
        "maximum of controls; a table below has the figures.",
        paint,
        height=0.6 + 2.6 * rows,
    )


def _floor(kinds: Sequence[ByKind]) -> float:
    """Where exact zeros are drawn: a decade under the smallest that is not zero."""
    found = [
        value
        for kind in kinds
        for groups in kind.offsets.values()
        for sketch in groups.values()
        for value in (sketch.quantile(0.5), sketch.quantile(0.9), sketch.greatest)
        if value > 0.0
    ]
    return min(found, default=1e-6) / 10


def _offset_panel(axes: Axes, kind: ByKind, floor: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    most = 1

    def line(what: str, q: float) -> tuple[list[float], list[float]]:
        groups = sorted(kind.offsets[what].items())
        return [_middle(first) for first, _ in groups], [max(s.quantile(q), floor) for _, s in groups]

    if kind.offsets["control"]:
        x, low = line("control", 0.5)
        high = line("control", 1.0)[1]
        axes.fill_between(x, low, high, color=CONTROL, alpha=0.25, lw=0, label="controls, median to largest")
        axes.plot(x, high, color=CONTROL, lw=1.0, ls=":")
        axes.plot(x, low, color=CONTROL, lw=1.0, ls=":")
    for q, style, marker, label in (
        (0.5, "-", "o", "probes, median"),
        (0.9, "--", "s", "nine in ten under"),
        (1.0, ":", "^", "largest"),
    ):
        x, y = line("probe", q)
        axes.plot(x, y, color=PROBE, ls=style, marker=marker, label=label, clip_on=False)
        most = max(most, len(x))
    ends = [first for first in OFFSETS[:most] if first in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)]
    axes.set_xticks(ends, [str(end) for end in ends])
    axes.minorticks_off()
    axes.set_ylim(bottom=floor)


def _middle(first: int) -> float:
    """The geometric middle of the group of offsets that begins there."""
    place = OFFSETS.index(first)
    last = OFFSETS[place + 1] - 1 if place + 1 < len(OFFSETS) else first
    return math.sqrt(first * last)


def evidence(times: Times, width_s: float, alarms: Sequence[tuple[float, str]]) -> Safe:
    """Evidence beside the bar, the verdict above, and the largest |d| of each moment below.

    alarms: seconds from the start, and a word each.
    """

    def paint(figure: Figure) -> None:
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for name, style, label in (("log_sum", "-", "evidence"), ("log_paired", "-.", "paired channel")):
            x, y = _series(times, width_s, name)
            if not np.isnan(y).all():
                top.plot(
                    x, np.maximum(y, -4.0), ls=style, color=PROBE, lw=2 if style == "-" else 1, label=label
                )
        x, bar = _series(times, width_s, "log_bar")
        if not np.isnan(bar).all():
            top.plot(x, bar, ls="--", color=ALARM, label="alarm bar")
        top.set_ylim(
            -4.5,
            1.25 * max(4.0, np.nanmax([0.0, *bar]), np.nanmax([0.0, *_series(times, width_s, "log_sum")[1]])),
        )
        top.set_ylabel("nats")
        _strip(top, times, width_s)
        for number, (at_s, word) in enumerate(alarms):
            for axes in (top, below):
                axes.axvline(at_s, color=ALARM, lw=1, ls=":")
            top.annotate(
                f"▼ {word}", (at_s, 0.66 - 0.13 * (number % 4)), xycoords=_TOP, color=ALARM, size=8, ha="left"
            )
        handles, labels = top.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper left", ncols=3)
        x, largest = _series(times, width_s, "max_abs")
        below.plot(x, np.maximum(largest, 1e-9), ls="none", marker="o", ms=3, color=PROBE, clip_on=False)
        below.set_yscale("log")
        _decades(below)
        below.set_ylabel("largest |d|,\nnats")
        _gone(below, times, width_s)
        _time_axis(below, times, width_s)

    return draw(
        "evidence",
        "Evidence over time",
        "The log of the evidence against the alarm bar, the verdict in force above it, alarms as vertical "
        "lines, and below the largest difference of the probes of each moment.",
        paint,
        height=4.0,
    )


def _decades(axes: Axes) -> None:
    """Ticks at a few powers of ten, as plain numbers."""
    low, high = axes.get_ylim()
    there = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    shown = [10.0**e for e in there][:: max(1, math.ceil(len(there) / 5))]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


def _strip(axes: Axes, times: Times, width_s: float) -> None:
    """The verdict in force, as a coloured line at the top with its name where it begins."""
    spells: list[tuple[str, float, float]] = []
    for at_s, held in times:
        verdict = str(held.values.get("verdict", ""))
        low, high = at_s - width_s / 2, at_s + width_s / 2
        if spells and spells[-1][0] == verdict:
            spells[-1] = (verdict, spells[-1][1], high)
        else:
            spells.append((verdict, low, high))
    whole = max((high for _, _, high in spells), default=1.0)
    for number, (verdict, low, high) in enumerate(spells[-60:], 1):
        at = axes.get_xaxis_transform()
        colour = _VERDICTS.get(verdict, FAINT)
        axes.plot([low, high], [0.97, 0.97], transform=at, color=colour, lw=5, solid_capstyle="butt")
        fits, last = high - low > whole * 0.013 * len(verdict), number == len(spells[-60:])
        if fits or last:
            place, side = (low, "left") if fits else (high, "right")
            axes.annotate(verdict, (place, 0.93), xycoords=_TOP, va="top", ha=side, size=8, color=INK)


def amnesia(cells: Mapping[tuple[int, int], tuple[float, float, int]], ceiling: float) -> Safe:
    """(depth, length) → (median, largest, probes). Depth and length in tokens, powers of two."""
    depths = sorted({depth for depth, _ in cells})
    lengths = sorted({length for _, length in cells})

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.grid(False)
        for (depth, length), (median, largest, count) in cells.items():
            x, y = depths.index(depth), lengths.index(length)
            shade = min(max(largest, 0.0), 1.0)
            axes.fill([x - 0.48, x + 0.48, x + 0.48, x - 0.48], [y - 0.46, y - 0.46, y + 0.46, y + 0.46],
                      color=ALARM, alpha=0.06 + 0.55 * shade, lw=0)  # fmt: skip
            mark = " !" if largest >= ceiling else ""
            figures, weight = (
                f"{_zero(median):.2f} / {_zero(largest):.2f}{mark}",
                "bold" if mark else "normal",
            )
            axes.text(x, y + 0.12, figures, ha="center", va="center", weight=weight)
            axes.text(x, y - 0.22, f"{count:,} probes", ha="center", va="center", size=7.5)
        axes.set_xticks(range(len(depths)), [_from(depth) for depth in depths])
        axes.set_yticks(range(len(lengths)), [_from(length) for length in lengths])
        axes.set_xlim(-0.6, len(depths) - 0.4)
        axes.set_ylim(-0.6, len(lengths) - 0.4)
        axes.set_xlabel("depth: tokens before the resume boundary")
        axes.set_ylabel("tokens of the prefix")

    return draw(
        "amnesia",
        "Amnesia by depth and length",
        "In each cell the median and the largest share of the far context that was lost: 0 remembers all, 1 "
        "as if it had never been there; an exclamation mark where it passes the ceiling.",
        paint,
        width=min(7.6, 2.2 + 1.35 * len(depths)),
        height=1.1 + 0.62 * len(lengths),
    )


def _zero(value: float) -> float:
    return 0.0 if abs(value) < 0.005 else value


def _from(size: int) -> str:
    return f"{size:,} to {2 * size - 1:,}" if size < 10_000 else f"from {size // 1024:,} Ki"


def latency(times: Times, width_s: float) -> Safe:
    """Latency and time to first token over time."""
    names = [name for name in ("latency", "ttft") if any(getattr(held, name).count for _, held in times)]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            for q, style, marker, label in ((0.5, "-", "o", "median"), (0.99, ":", "^", "99 in 100 under")):
                seen = [(at, getattr(held, name)) for at, held in times]
                points = [(at, sketch.quantile(q) if sketch.count else math.nan) for at, sketch in seen]
                colour = PROBE if q == 0.5 else SECOND
                axes.plot(
                    *zip(*points, strict=True), ls=style, marker=marker, ms=3, color=colour, label=label
                )
            axes.set_yscale("log")
            axes.set_title({"latency": "whole answer", "ttft": "first token"}[name])
            _gone(axes, times, width_s)
            _time_axis(axes, times, width_s)
        panels[0].set_ylabel("seconds from the intended start")
        _plain_log(panels[0])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)

    return draw(
        "latency",
        "Latency and time to first token over time",
        "Median and 99th percentile of answers that ended well; a table below has them by shape.",
        paint,
    )


def _plain_log(axes: Axes) -> None:
    """Ticks at 1, 2, 5 of each decade as plain numbers."""
    low, high = axes.get_ylim()
    ticks = [k * 10.0**e for e in range(-4, 5) for k in (1, 2, 5) if low <= k * 10.0**e <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def load(times: Times, width_s: float) -> Safe:
    """Prompts a second asked and delivered, and how many were in flight."""

    def paint(figure: Figure) -> None:
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        x, asked = _series(times, width_s, "asked")
        delivered = _series(times, width_s, "delivered")[1]
        rate = np.asarray(delivered) / width_s
        top.fill_between(x, rate, step="mid", color=PROBE, alpha=0.3, lw=0)
        top.step(x, rate, where="mid", color=PROBE, label="delivered")
        top.step(
            x, np.asarray(asked) / width_s, where="mid", color=INK, ls="--", lw=1.1, label="asked by the plan"
        )
        top.set_ylim(bottom=0)
        top.set_ylabel("prompts / s")
        below.step(*_series(times, width_s, "in_flight"), where="mid", color=PROBE)
        below.set_ylim(bottom=0)
        below.set_ylabel("most in flight")
        for axes in (top, below):
            _gone(axes, times, width_s)
        _time_axis(below, times, width_s)
        figure.legend(*top.get_legend_handles_labels(), loc="outside upper left", ncols=2)

    return draw(
        "load",
        "Load asked against delivered",
        "Prompts a second that the plan asked for and that were sent, and below the most requests in flight.",
        paint,
        height=3.4,
    )


def tokens(name: str, off: Mapping[str, npt.NDArray[np.float64]]) -> Safe:
    """|d| by token of one probe. off: ``warm``, ``control`` and ``cold again``, each against cold, as far as
    there; shape (T,), nats."""
    styles: dict[str, dict[str, Any]] = {
        "control": {"color": INK, "ls": "none", "marker": "s", "ms": 3},
        "cold again": {"color": SECOND, "ls": "none", "marker": "^", "ms": 4},
    }

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        sizes = {what: np.abs(d) for what, d in off.items() if d.size}
        found = [float(s[s > 0].min()) for s in sizes.values() if (s > 0).any()]
        floor = max(min(found, default=1e-6) / 3, 1e-12)
        for what, size in sizes.items():
            place = np.arange(1, size.size + 1)
            shown = np.maximum(np.nan_to_num(size, nan=floor, posinf=1e3), floor)
            if what == "warm":
                axes.bar(place, shown - floor, bottom=floor, width=0.8, color=PROBE, alpha=0.6, label="warm")
            else:
                axes.plot(place, shown, label=what, **styles[what])
        axes.set_yscale("log")
        axes.set_ylim(bottom=floor)
        _decades(axes)
        axes.set_xlim(0.2, max((s.size for s in sizes.values()), default=1) + 0.8)
        axes.set_xlabel("token after the resume boundary")
        axes.set_ylabel("|d| against cold, nats")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3)

    return draw(
        name,
        "How far off the answer was, token by token",
        "Bars for the warm pass, marks for the control and the repeated cold pass where they were made.",
        paint,
        height=2.5,
    )
