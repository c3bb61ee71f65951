"""The whole bench: record what is missing, grade it, and say it as text, JSON, page and picture."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from soak import __version__
from soak.bench.detect.aims import Aim, aims, lost
from soak.bench.detect.drawing import course, svg
from soak.bench.detect.grading import Grader
from soak.bench.detect.library import NUMERICS, Library, Task, complete, tasks_of
from soak.bench.detect.outcome import BOOTSTRAPPED, Outcome, outcome
from soak.bench.detect.recording import Plan
from soak.bench.detect.resample import made_rare
from soak.bench.detect.scenes import CLEAN_SCENE, DRIFTS, SCENES, scene
from soak.bench.detect.table import tables

FULL = Plan()

REDUCED = Plan(
    seeds=2,
    probes=24,
    clean_seeds=2,
    clean_probes=64,
    loose=True,
    exact_tokens=1024,
    drift_seeds=1,
    often=1000,
    only=(
        "stale-track-rows", "stale-track-tail", "multi-prefill-offset", "state-not-restored",
        "middle-truncated", "nan-logprob",
    ),
)  # fmt: skip
"""For CI, minutes on two cores: some faults of every sort, few runs, conditions together in every act.

That each scene brings about its fault is tested for all of them, in ``tests/bench/test_scenes.py``.
"""

REDUCED_BOOTSTRAPPED = 2_000

DRAWN = "multi-prefill-offset"
DRAWN_PER_MILLE = 250
DRAWN_PROBES = 200
"""The fault in the picture, how often its conditions come together, and the most probes that are drawn."""


@dataclass(frozen=True, slots=True)
class Benched:
    """What came of it. lost: faults that were not found, and false alarms, in words; empty if all is well."""

    found: Outcome
    aims: list[Aim]
    lost: list[str]
    about: str

    @property
    def markdown(self) -> str:
        """The tables."""
        return tables(self.found, self.about, self.aims)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "about": self.about,
            "aims": [asdict(aim) for aim in self.aims],
            "lost": self.lost,
            **self.found.as_dict(),
        }


def bench(
    folder: Path,
    plan: Plan,
    *,
    jobs: int,
    bootstrapped: int = BOOTSTRAPPED,
    command: str,
    date: str,
    say: Callable[[str], None],
) -> Benched:
    """Run all of it. folder: of the records, which are kept; command, date: as the page is to name them."""
    library = Library(folder, plan)
    complete(library, _tasks(plan), jobs, say)
    found = outcome(library, bootstrapped)
    versions = f"soak {__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    about = (
        f"`{command}`, {versions}, {date}. {plan.seeds} runs of each fault, A = {plan.run_length:,.0f}. "
        "Numbers are median (90th percentile) of valid probes until the first alarm, and until CORRUPT; a "
        "dash: the record ended first."
    )
    return Benched(found, aims(found), lost(found), about)


def _tasks(plan: Plan) -> list[Task]:
    return [
        *tasks_of((CLEAN_SCENE, *(s for s in SCENES if plan.takes(s))), plan, NUMERICS),
        *tasks_of(DRIFTS, plan, ("production",)),
    ]


def picture(folder: Path, plan: Plan) -> str:
    """Recorded probes of a fault that is seldom brought about, as SVG. Raises LookupError without them."""
    library = Library(folder, plan)
    grader = Grader(library.calibration(DRAWN, "production"), plan.detect(scene(DRAWN), "production"))
    runs = [library.run(DRAWN, "production", seed) for seed in range(plan.seeds)]
    probes = made_rare(runs, DRAWN_PER_MILLE, DRAWN_PROBES, seed=0)
    title = f"Simulator with {DRAWN}, brought about in a quarter of the traffic"
    return svg(course(grader, probes), title)
