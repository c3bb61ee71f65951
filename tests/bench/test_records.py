from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import orjson
import pytest

from soak.bench.detect.library import Library, Task, complete, tasks_of
from soak.bench.detect.recording import CALIBRATION_SEED, Plan
from soak.bench.detect.records import (
    calibration_of,
    calibration_values,
    first_k3,
    probe_of,
    probe_values,
    read,
    write,
)
from soak.bench.detect.scenes import CLEAN_SCENE, DRIFTS, SCENES, scene
from tests.bench.made_up import broken, calibration, full, recorded
from tests.detect.synthetic import probe

TINY = Plan(seeds=1, probes=6, clean_seeds=1, clean_probes=6, loose=True, exact_tokens=64, often=1000)


def through_json(value: object) -> list[object]:
    return orjson.loads(orjson.dumps(value))  # type: ignore[no-any-return]


@pytest.mark.parametrize("made", [recorded(3), broken(4), full(5)], ids=["valid", "hard", "full"])
def test_a_probe_comes_back_as_it_was(made: object) -> None:
    again = probe_of(through_json(probe_values(made)))  # type: ignore[arg-type]
    assert repr(again) == repr(made)


def test_a_calibration_comes_back_as_it_was() -> None:
    made = calibration(10)
    assert repr(calibration_of(orjson.loads(orjson.dumps(calibration_values(made))))) == repr(made)


def test_a_pair_is_shown_only_to_who_wants_it() -> None:
    made = recorded(1, 0.2)
    assert made.shown(with_pair=False).confirmation is None
    assert made.shown(with_pair=False).cold_repeat is None
    assert made.shown(with_pair=True).confirmation is made.result.confirmation
    assert full(1).shown(with_pair=False).cold_repeat is not None


def test_k3_is_of_the_first_64_tokens_and_not_clipped() -> None:
    result = probe(1)
    result.warm, result.cold = np.array([5.0] + [0.0] * 63 + [9.0] * 10), np.zeros(74)
    assert first_k3(result) == pytest.approx((math.exp(5) - 1 - 5) / 64)


def test_a_record_for_something_else_is_none(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json.gz"
    write(path, {"a": (1, 2)}, [1.5, None])
    assert read(path, {"a": (1, 2)}) == [1.5, None]
    assert read(path, {"a": (1, 3)}) is None
    assert read(tmp_path / "none", {}) is None
    assert [p.name for p in path.parent.iterdir()] == ["r.json.gz"]


def test_tasks_are_calibrations_first_then_seed_by_seed() -> None:
    plan = Plan(seeds=2, clean_seeds=1)
    tasks = list(tasks_of([CLEAN_SCENE, SCENES[0], *DRIFTS], plan, ("production",)))
    assert [t.seed for t in tasks[:2]] == [None, None]
    assert [t.scene for t in tasks if t.seed is None] == ["clean", SCENES[0].name]
    assert [t.seed for t in tasks[2:] if t.scene == SCENES[0].name] == [0, 1]
    assert len({t.words for t in tasks}) == len(tasks)


def test_what_a_record_is_made_for_names_the_server_and_the_plan() -> None:
    plan, what = Plan(), scene("stale-track-rows")
    held = plan.made_for(what, "production", 3)
    assert held != plan.made_for(what, "exact", 3)
    assert held != plan.made_for(what, "production", 4)
    assert held != Plan(loose=True).made_for(what, "production", 3)
    assert held == Plan(seeds=99, clean_probes=7).made_for(what, "production", 3)
    assert plan.made_for(what, "exact", None)["server"]["noise_seed"] == CALIBRATION_SEED  # type: ignore[index]
    drifting = [plan.made_for(d, "production", 0) for d in DRIFTS]
    assert drifting[0] != drifting[1] != drifting[2]


def test_a_library_records_what_is_missing_and_says_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "short-tail-chunk"
    tasks = [Task(name, "exact"), Task(name, "exact", 0)]
    first, second = (Library(tmp_path / folder, TINY) for folder in "ab")
    with pytest.raises(LookupError, match="no record of short-tail-chunk, exact, seed 0"):
        first.run(name, "exact", 0)
    for library in (first, second):
        for task in tasks:
            assert not library.has(task)
            library.record(task)
            assert library.has(task)
    once, again = (library.run(name, "exact", 0) for library in (first, second))
    assert len(once) == TINY.probes
    assert repr(once) == repr(again)
    assert len(first.calibration(name, "exact").controls) >= 2
    assert any(not p.result.divergence.zero for p in once if p.result.divergence is not None)
    monkeypatch.setattr(Library, "record", None)
    complete(first, tasks, 1, print)  # nothing is missing, so nothing is recorded


def test_an_error_while_recording_names_the_task(tmp_path: Path) -> None:
    """A run cannot be recorded before its calibration."""
    with pytest.raises(RuntimeError, match=r"recording short-tail-chunk, exact, seed 0 failed: no record of"):
        complete(Library(tmp_path, TINY), [Task("short-tail-chunk", "exact", 0)], 1, print)
