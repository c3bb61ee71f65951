"""Folders of made-up runs, as a run leaves them: summary.json, course.json, journal.sqlite."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from soak.detect.verdict import Alarm, Verdict
from soak.export.course_file import CourseFile
from soak.export.summary import LoadCount, write_atomically
from soak.oracle.divergence import diverge
from soak.oracle.probe import ProbeResult, ResumeKind
from tests.export.samples import observation, probe, report, summary
from tests.incident.journalled import Run

Said = dict[str, Any]


def compared(number: int, off: float, kind: ResumeKind = ResumeKind.PREFILL, tokens: int = 40) -> ProbeResult:
    """A valid probe with its arrays, every token off by about ``off`` nats."""
    rng = np.random.default_rng(number)
    result = probe(number=number, size=off, kind=kind)
    result.cold = -rng.random(tokens) - 1.0
    result.warm = result.cold + off * rng.standard_normal(tokens)
    result.divergence = diverge(result.warm, result.cold)
    result.control_off = 1e-4 * rng.standard_normal(tokens)
    result.control = diverge(result.cold + result.control_off, result.cold)
    result.victim_tokens = 600 + 100 * (number % 9)
    return result


def a_course(out: Path, *, probes: int = 40, off: float = 1e-4, latency_s: float = 0.2) -> CourseFile:
    """A run of ``probes`` seconds."""
    now = [1_772_366_400.0]
    kept = CourseFile(out, "0123456789ab", {"load": {"rate": 1.0}}, lambda _words: None, clock=lambda: now[0])
    for number in range(probes):
        now[0] += 1.0
        kind = ResumeKind.DECODE if number % 2 else ResumeKind.PREFILL
        kept.course.observe_probe(compared(number, off, kind))
        chunks = tuple(10.0 + latency_s * (1 + (number * 7 % 5) / 10) * k for k in (1, 2))
        kept.course.observe_load(observation(chunk_s=chunks))
        kept.course.sample(
            kept.at_s,
            replace(report(), log_sum=number / 10),
            verdict="CLEAN" if number > 10 else "CALIBRATING",
            asked=2 * number,
            delivered=2 * number - number // 10,
            in_flight=number % 5,
            gone=20 <= number < 23,
        )
    return kept


def finished(
    out: Path,
    verdict: Verdict = Verdict.CLEAN,
    change: Callable[[Said], None] = lambda _said: None,
    **course: Any,
) -> Path:
    """A run that came to its end."""
    out.mkdir(parents=True, exist_ok=True)
    said = summary(verdict, load=LoadCount(80, 76, {"server_busy": 4}))
    change(said)
    write_atomically(out / "summary.json", said)
    a_course(out, **course).close(said)
    return out


def killed(out: Path, verdict: Verdict = Verdict.CLEAN) -> Path:
    """A run of which only its last save is there."""
    finished(out, verdict)
    (out / "summary.json").unlink()
    return out


def with_incident(out: Path, words: str = "0.8 nats off", name: str = "3fa9c1d2") -> Path:
    """A run with a journal that has one incident, of which everything that is text is ``words``."""
    out.mkdir(parents=True, exist_ok=True)
    run = Run(out / "journal.sqlite")
    run.load(range(12))
    number = asyncio.run(_first_valid(run))
    raised_s = time.time() - time.monotonic() + run.now_s
    alarm = Alarm(Verdict.CORRUPT, words, words, words, words, (number,))
    run.journal.alarm(replace(run.alarm(number, name=name), alarm=alarm, raised_s=raised_s))
    run.journal.close()

    def named(said: Said) -> None:
        said["incidents"] = [name]
        said["journal"] = {"path": str(out / "journal.sqlite"), "bytes": 1, "dropped": 0, "failing": ""}

    return finished(out, Verdict.CORRUPT, named)


async def _first_valid(run: Run) -> int:
    number = 0
    while not any(seen.valid for seen in run.probes):
        number += 1
        await run.probe(number)
    return number


def spoil(value: Any, marker: str) -> Any:
    """Every text inside a value with the marker behind it, and every name of a mapping as well."""
    if isinstance(value, str):
        return f"{value}{marker}"
    if isinstance(value, list):
        return [spoil(inner, marker) for inner in value]
    if isinstance(value, dict):
        return {name: spoil(inner, marker) for name, inner in value.items()}
    return value


def reread(path: Path) -> Said:
    """A JSON file."""
    said: Said = json.loads(path.read_text())
    return said
