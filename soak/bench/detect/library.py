"""Records on disk: what is missing is recorded, by several processes, and what is there is read.

Each task writes its one file when it is done, so a bench that was stopped goes on where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

from soak.bench.detect import records
from soak.bench.detect.recording import (
    Plan,
    bars_of,
    calibrated,
    record_calibration,
    record_run,
)
from soak.bench.detect.records import CalibrationRecord, Probe
from soak.bench.detect.scenes import Scene, scene
from soak.sim.config import Numerics

NUMERICS: tuple[Numerics, ...] = get_args(Numerics)


@dataclass(frozen=True, slots=True)
class Task:
    """One file. seed None: the calibration of that server configuration."""

    scene: str
    numerics: Numerics
    seed: int | None = None

    @property
    def words(self) -> str:
        """For progress and errors."""
        return f"{self.scene}, {self.numerics}, {'calibration' if self.seed is None else f'seed {self.seed}'}"


class Library:
    """The records of one plan in one folder."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan

    def _path(self, task: Task) -> Path:
        name = "calibration" if task.seed is None else f"seed-{task.seed:03d}"
        folder = task.scene.replace(" ", "-").replace("(", "").replace(")", "")
        return self.folder / task.numerics / folder / f"{name}.json.gz"

    def _made_for(self, task: Task) -> dict[str, object]:
        return self.plan.made_for(scene(task.scene), task.numerics, task.seed)

    def has(self, task: Task) -> bool:
        """Whether it was recorded, for this plan."""
        return records.read(self._path(task), self._made_for(task)) is not None

    def calibration(self, scene_name: str, numerics: Numerics) -> CalibrationRecord:
        """That of the scene, or of the one whose calibration serves. Raises LookupError if there is none."""
        return records.calibration_of(
            self._held(Task(scene(scene_name).calibrated_by or scene_name, numerics))
        )

    def run(self, scene_name: str, numerics: Numerics, seed: int) -> list[Probe]:
        """Raises LookupError if it was not recorded."""
        return [records.probe_of(values) for values in self._held(Task(scene_name, numerics, seed))]

    def _held(self, task: Task) -> Any:
        content = records.read(self._path(task), self._made_for(task))
        if content is None:
            raise LookupError(f"no record of {task.words} in {self.folder}: run the bench to record it")
        return content

    def record(self, task: Task) -> None:
        """Record and write one file."""
        what = scene(task.scene)
        if task.seed is None:
            made = asyncio.run(record_calibration(what, task.numerics, self.plan))
            content: object = records.calibration_values(made)
        else:
            settings = self.plan.detect(what, task.numerics)
            detector = calibrated(self.calibration(task.scene, task.numerics), settings)
            bars = bars_of(detector, what, task.numerics)
            probes = asyncio.run(record_run(what, task.numerics, self.plan, task.seed, bars))
            content = [records.probe_values(probe) for probe in probes]
        records.write(self._path(task), self._made_for(task), content)


def tasks_of(scenes: Sequence[Scene], plan: Plan, numerics: Sequence[Numerics]) -> Iterator[Task]:
    """Every file that a plan needs: calibrations, then the first seed of everything, then the second."""
    every = [(each, kind) for each in scenes for kind in numerics]
    yield from (Task(each.name, kind) for each, kind in every if not each.calibrated_by)
    for seed in range(max(plan.seeds, plan.clean_seeds, plan.drift_seeds)):
        for each, kind in every:
            if seed < plan.seeds_of(each):
                yield Task(each.name, kind, seed)


def complete(library: Library, tasks: Sequence[Task], jobs: int, say: Callable[[str], None]) -> None:
    """Record what is missing, calibrations first; ``say`` is told of each file as it is written.

    An error of one task is raised once the others that were under way are done.
    """
    for first in (True, False):
        missing = [t for t in tasks if (t.seed is None) is first and not library.has(t)]
        if not missing:
            continue
        # not forked: a fork copies whatever threads hold at that moment
        with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
            futures: dict[Future[None], Task] = {pool.submit(library.record, t): t for t in missing}
            for done, future in enumerate(as_completed(futures), start=1):
                try:
                    future.result()
                except Exception as error:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise RuntimeError(f"recording {futures[future].words} failed: {error}") from error
                say(f"{done} of {len(missing)} recorded: {futures[future].words}")
