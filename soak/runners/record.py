"""The record of a check that travels with a server image: write it at build time, read it where soak runs.

The record is what ``soak runners check --json`` prints: no path of it is opened, nothing in it is run, and
what it does not say stays unsaid. A damaged record is an error, never an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from soak.runners.answer import FINGERPRINT_FIELD, STATES
from soak.runners.checking import SCHEMA, Report

_LARGEST = 1_000_000


class RecordError(Exception):
    """A record that cannot be read. The text says which file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Record:
    """What an installation said when it was checked. states: by the name of the fault, sorted."""

    version: str
    states: Mapping[str, str]

    def fields(self) -> dict[str, str]:
        """As fields of a fingerprint: ``runner_fix.NAME``."""
        return {FINGERPRINT_FIELD + name: state for name, state in self.states.items()}


def write(report: Report, path: Path) -> None:
    """Write a report as record; folders are made. Raises RecordError."""
    text = json.dumps(report.as_dict(), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


def read(path: Path) -> Record:
    """The record in a file. Raises RecordError."""
    try:
        if path.stat().st_size > _LARGEST:
            raise RecordError(f"{path}: larger than any record; `soak runners check --json` makes one")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}") from error
    return parse(value, str(path))


def parse(value: Any, name: str = "the record") -> Record:
    """A record from its JSON value. Raises RecordError."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        schema = value.get("schema") if isinstance(value, dict) else None
        raise RecordError(
            f"{name}: schema {schema!r}, and {SCHEMA!r} is read here; `soak runners check --json` writes it"
        )
    sglang, faults = value.get("sglang"), value.get("faults")
    if not isinstance(sglang, dict) or not isinstance(faults, dict):
        raise RecordError(f"{name}: lacks sglang or faults")
    states: dict[str, str] = {}
    for fault, row in sorted(faults.items()):
        state = row.get("state") if isinstance(row, dict) else None
        if state not in STATES:
            raise RecordError(f"{name}: {fault} has state {state!r}, none of {', '.join(STATES)}")
        states[fault] = state
    return Record(str(sglang.get("version", "")), MappingProxyType(states))
