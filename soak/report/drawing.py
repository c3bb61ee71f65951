"""One figure as an inline SVG: matplotlib drawn on, without a screen, in colours that the page's theme sets.

matplotlib is heavy and optional (the extra ``report``): it is imported here, when something is drawn, and
nowhere else. Text stays text, so that a reader's own font and a screen reader get it, and none of it is read
as a formula.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from soak.report.markup import Safe, el

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW_TO_GET = "pip install 'soak[report]'"

# Drawn in these, and replaced by the theme's: no plot has a use for twelve near-blacks.
_ROLES = {
    "ink": "#010101",
    "faint": "#010102",
    "grid": "#010103",
    "probe": "#010104",
    "control": "#010105",
    "alarm": "#010106",
    "second": "#010107",
    "paper": "#010108",
}
INK, FAINT, GRID, PROBE, CONTROL, ALARM, SECOND, PAPER = _ROLES.values()

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "axes.unicode_minus": True,
}


class PlotsUnavailable(Exception):
    """matplotlib is not installed, or cannot be used; the message says how to get a report."""


def need_plots() -> None:
    """Raises PlotsUnavailable where nothing can be drawn."""
    # before its import, which speaks already: of a home that it cannot write to, and later of missing fonts
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotsUnavailable(f"the report's plots need matplotlib ({error}): {HOW_TO_GET}") from error


def draw(
    name: str,
    title: str,
    words: str,
    paint: Callable[[Figure], None],
    *,
    width: float = 7.6,
    height: float = 2.8,
) -> Safe:
    """What ``paint`` puts on a figure of that size in inches. name: unlike any other of the page;
    title, words: what it shows and what it says, for whoever does not see it."""
    need_plots()
    import matplotlib
    from matplotlib.figure import Figure

    out = io.BytesIO()
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.simplefilter("ignore")  # a glyph that the measuring font lacks; the reader's has it
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(out.getvalue().decode("utf-8"), name, title, words, width)


def _inline(svg: str, name: str, title: str, words: str, width: float) -> Safe:
    """The svg element alone, named for screen readers, without ids that nothing refers to."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    for role, colour in _ROLES.items():
        svg = svg.replace(colour, f"var(--{role})")
    box = re.search(r'viewBox="[^"]*"', svg)
    if box is None:
        raise PlotsUnavailable("matplotlib's SVG has no viewBox: another version than this soak knows")
    body = svg[svg.index(">") + 1 :].strip()
    ids = f"{name}-title", f"{name}-desc"
    head = (
        f'<svg {box[0]} role="img" aria-labelledby="{ids[0]} {ids[1]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    told = el("title", title, id=ids[0]) + el("desc", words, id=ids[1])
    room = f"max-width: {width * 118:.0f}px"
    return el("div", el("div", Safe(head + told + body), style=room), class_="plot", tabindex="0")
