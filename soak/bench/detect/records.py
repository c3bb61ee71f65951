"""What is kept of a recorded probe or control, and the files it is kept in: one per run, written at once.

A record holds figures, never a judgement. A file made for other settings than those asked for is no record.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from soak.oracle.amnesia import Amnesia
from soak.oracle.divergence import Divergence, k3_per_token
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind

FORMAT = 2

PUBLIC_TOKENS = 64
"""Scored tokens of a sample that the public harness looks at."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe as it was recorded. pair: the confirming pair, made wherever any detector could want one.

    k3: mean over the first 64 scored tokens, NaN for an invalid probe. repeated: whether the cold pass was
    repeated for its own sake, and not only as part of the pair. act: which act of the run left its prefix;
    together: whether the fault's conditions came together in that act.
    """

    result: ProbeResult
    k3: float
    repeated: bool
    act: int
    together: bool

    def shown(self, with_pair: bool) -> ProbeResult:
        """The result as a detector gets it that wanted a pair, or did not. A fresh copy."""
        held = self.result
        keep = with_pair or self.repeated
        return ProbeResult(
            number=held.number,
            shape=held.shape,
            kind=held.kind,
            outcome=held.outcome,
            detail=held.detail,
            under_load=held.under_load,
            resume_boundary=held.resume_boundary,
            tokens_spent=held.tokens_spent,
            divergence=held.divergence,
            control=held.control,
            control_note=held.control_note,
            amnesia=held.amnesia,
            cold_repeat=held.cold_repeat if keep else None,
            confirmation=held.confirmation if with_pair else None,
            confirmation_cold=held.confirmation_cold if with_pair else None,
        )


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """One control made for calibration."""

    kind: ResumeKind
    divergence: Divergence
    under_load: bool


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """Controls in their order, repeated cold passes with their condition, and what could not be had.

    hard: null logprobs and broken lengths met on the way; refused: controls that could not be made, by why.
    """

    controls: tuple[ControlRecord, ...]
    colds: tuple[tuple[Divergence, bool], ...]
    hard: int
    refused: Mapping[str, int]


def first_k3(result: ProbeResult) -> float:
    """Mean k3 of the first 64 scored tokens, as the public harness has it: nothing is clipped."""
    if not result.valid:
        return float("nan")
    return float(np.mean(k3_per_token((result.warm - result.cold)[:PUBLIC_TOKENS])))


def probe_values(probe: Probe) -> list[Any]:
    """Plain values for ``probe_of``."""
    held = probe.result
    parts = (held.divergence, held.control, held.cold_repeat, held.confirmation, held.confirmation_cold)
    return [
        held.number, held.shape, held.kind.value, held.outcome.value, held.detail, held.under_load,
        held.resume_boundary, held.tokens_spent, held.control_note, probe.k3, probe.repeated, probe.act,
        probe.together,
        None if held.amnesia is None else astuple(held.amnesia),
        *(None if part is None else astuple(part) for part in parts),
    ]  # fmt: skip


def probe_of(values: list[Any]) -> Probe:
    """What ``probe_values`` gave. JSON has no NaN: null stands for it."""
    number, shape, kind, outcome, detail, load, boundary, tokens, note, *rest = values
    k3, repeated, act, together, lost, *parts = rest
    divergence, control, cold, pair, pair_cold = (_divergence(part) for part in parts)
    result = ProbeResult(
        number=number,
        shape=shape,
        kind=ResumeKind(kind),
        outcome=ProbeOutcome(outcome),
        detail=detail,
        under_load=load,
        resume_boundary=boundary,
        tokens_spent=tokens,
        divergence=divergence,
        control=control,
        control_note=note,
        amnesia=None if lost is None else Amnesia(*lost),
        cold_repeat=cold,
        confirmation=pair,
        confirmation_cold=pair_cold,
    )
    return Probe(result, float("nan") if k3 is None else k3, repeated, act, together)


def _divergence(values: list[Any] | None) -> Divergence | None:
    if values is None:
        return None
    given: list[Any] = [float("nan") if value is None else value for value in values]
    return Divergence(*given)


def _known(values: list[Any]) -> Divergence:
    divergence = _divergence(values)
    if divergence is None:
        raise ValueError("a control without figures is no record")
    return divergence


def calibration_values(record: CalibrationRecord) -> dict[str, Any]:
    """Plain values for ``calibration_of``."""
    return {
        "controls": [[c.kind.value, astuple(c.divergence), c.under_load] for c in record.controls],
        "colds": [[astuple(divergence), load] for divergence, load in record.colds],
        "hard": record.hard,
        "refused": dict(record.refused),
    }


def calibration_of(values: Mapping[str, Any]) -> CalibrationRecord:
    """What ``calibration_values`` gave."""
    return CalibrationRecord(
        controls=tuple(ControlRecord(ResumeKind(k), _known(d), load) for k, d, load in values["controls"]),
        colds=tuple((_known(d), load) for d, load in values["colds"]),
        hard=values["hard"],
        refused=values["refused"],
    )


def write(path: Path, made_for: Mapping[str, Any], content: Any) -> None:
    """Write a record so that a reader finds all of it or nothing, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = gzip.compress(orjson.dumps({"format": FORMAT, "made_for": made_for, "content": content}), mtime=0)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(body)
    part.replace(path)


def read(path: Path, made_for: Mapping[str, Any]) -> Any:
    """The content of a record made for exactly this; None where there is none or it was made for another."""
    if not path.exists():
        return None
    held = orjson.loads(gzip.decompress(path.read_bytes()))
    if held["format"] != FORMAT or held["made_for"] != orjson.loads(orjson.dumps(made_for)):
        return None
    return held["content"]
