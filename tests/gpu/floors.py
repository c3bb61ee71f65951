"""The picture of noise floors: of each kept soak the median and the largest k3, by what is compared.

python3 -m tests.gpu.floors docs/evidence/h200 docs/evidence/h200-floors.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHOSEN = (
    ("many-servers.json", "healthy-1", "bf16, 1 at once"),
    ("one-prefill.json", "healthy-3", "bf16, 3 at once"),
    ("many-servers.json", "healthy-16", "bf16, 16 at once"),
    ("one-prefill.json", "tp2-3", "bf16, tp=2, 3 at once"),
    ("one-prefill.json", "nvfp4-3", "NVFP4, 3 at once"),
    ("many-servers.json", "nvfp4-tp2-3", "NVFP4, tp=2, 3 at once"),
    ("one-prefill.json", "tp1-exact-3", "deterministic, 3 at once"),
    ("one-prefill.json", "tp2-exact-3", "deterministic, tp=2, 3 at once"),
    ("rows.json", "with34184-bursts", "Inkling, deterministic, bursts"),
)
"""File, soak, and what it is called in the picture."""
COMPARED = (
    ("cold_repeat", "cold against cold", "#4477aa"),
    ("control", "control", "#228833"),
    ("probe", "warm against cold", "#ee6677"),
    ("served", "served (decode) against cold", "#aa3377"),
)
LEAST = 1e-7
"""Where zero is drawn, on a logarithmic scale that has none."""


def figures(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Name and figures of each chosen soak, of the shape with most probes. KeyError for a missing one."""
    found = []
    for file, name, called in CHOSEN:
        rows = {row["name"]: row for row in json.loads((folder / file).read_text())}
        shapes = rows[name]["k3"]
        found.append((called, shapes[max(shapes, key=lambda shape: shapes[shape]["probe"]["count"])]))
    return found


def draw(folder: Path, target: Path) -> None:
    """Write the picture as SVG, without a date in it."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "soak", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    rows = figures(folder)
    figure, axes = pyplot.subplots(figsize=(9, 4.4), layout="constrained")
    for place, (_, compared) in enumerate(rows):
        for beside, (key, _, colour) in enumerate(COMPARED):
            seen = compared.get(key)
            if seen is None:
                continue
            y = len(rows) - place + 0.27 - 0.18 * beside
            median, largest = max(seen["median"], LEAST), max(seen["max"], LEAST)
            axes.plot([median, largest], [y, y], color=colour, lw=1.5)
            axes.plot([median], [y], "o", color=colour, ms=4)
    for _, words, colour in COMPARED:
        axes.plot([], [], "o-", color=colour, lw=1.5, ms=4, label=words)
    axes.set_xscale("log")
    axes.set_xlim(LEAST / 1.5, 1e-2)
    axes.set_xticks([LEAST, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2], ["0", "1e-6", "1e-5", "1e-4", "1e-3", "1e-2"])
    axes.set_yticks([len(rows) - place for place in range(len(rows))], [called for called, _ in rows])
    axes.set_xlabel("k3, nats per token: dot the median, line to the largest of a run")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper center", fontsize=8)
    figure.savefig(target, format="svg", metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    folder, target = (sys.argv[1:] if arguments is None else list(arguments))[:2]
    draw(Path(folder), Path(target))
    return 0


if __name__ == "__main__":
    sys.exit(main())
