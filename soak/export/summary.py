"""The end-of-run summary as one plain dict, and how it reaches the disk.

The dict is a promise to scripts: its keys change only together with ``SCHEMA_VERSION``. It must never hold a
secret: the target's address is stripped of user, password and query, and the fingerprint is the caller's
allow-list, taken as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import orjson

from soak.detect.verdict import Alarm, DetectorReport, Verdict
from soak.drive.coverage_state import ConjunctionCoverage
from soak.export.tally import Tally

SCHEMA_VERSION = 1
SUMMARY_NAME = "summary.json"
"""In the folder of a run."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run before its first request.

    fingerprint: allow-listed fields of the server, never all it says of itself. replay_command: the command
    that drives the same plan again; empty for ``soak run`` with the seed.
    """

    target: str
    seed: int
    nonce: int
    plan_version: int | str
    spec_digest: str
    soak_version: str
    simulator: bool
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    replay_command: str = ""


@dataclass(frozen=True, slots=True)
class LoadCount:
    """Prompts the plan wanted sent, those that were, and by reason those that were not."""

    asked: int = 0
    delivered: int = 0
    undelivered: Mapping[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """delivered / asked; None when nothing was asked."""
        return self.delivered / self.asked if self.asked else None


def public_address(url: str) -> str:
    """The address without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}" if parts.scheme else host + parts.path


def build_summary(
    facts: RunFacts,
    *,
    verdict: Verdict,
    exit_code: int,
    reasons: Iterable[str],
    report: DetectorReport,
    coverage: Iterable[ConjunctionCoverage],
    tally: Tally,
    load: LoadCount,
    started_at: datetime,
    ended_at: datetime,
    interrupted: bool = False,
    alarm_facts: Mapping[Alarm, Mapping[str, Any]] = MappingProxyType({}),
    journal: Mapping[str, Any] | None = None,
    gaps: Iterable[Mapping[str, Any]] = (),
    first_index: int = 0,
) -> dict[str, Any]:
    """Everything a run found. Both times must carry a time zone; divergence is in nats, times are in seconds.

    ``verdict`` stands above the report's own, which does not know coverage. ``alarm_facts``: what is known of
    an alarm beside what the detectors say: its id, when it was raised, what a person said of it. ``journal``:
    its path, size and losses; with one, every alarm under an id is an incident. ``gaps``: times without the
    server. ``first_index``: above 0 for a run that went on from there. Raises ValueError for a time
    without zone.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict.value,
        "exit_code": exit_code,
        "interrupted": interrupted,
        "reasons": list(reasons),
        "simulator": facts.simulator,
        "target": public_address(facts.target),
        "seed": facts.seed,
        "nonce": facts.nonce,
        "plan_version": facts.plan_version,
        "spec_digest": facts.spec_digest,
        "soak_version": facts.soak_version,
        "replay_command": facts.replay_command,
        "first_index": first_index,
        "fingerprint": dict(facts.fingerprint),
        "started_at": _utc(started_at),
        "ended_at": _utc(ended_at),
        "duration_s": (ended_at - started_at).total_seconds(),
        "detector": _detector(report, alarm_facts),
        "journal": None if journal is None else dict(journal),
        "incidents": [] if journal is None else _incidents(report, alarm_facts),
        "probes": _probes(tally),
        "divergence": {shape: probes.divergence_dict() for shape, probes in tally.probes.items()},
        "coarsened_kl": {shape: probes.coarsened_dict() for shape, probes in tally.probes.items()},
        "worst_probe": tally.worst or None,
        "amnesia": {shape: probes.amnesia_dict() for shape, probes in tally.probes.items()},
        "needles": tally.needles.rows(),
        "coverage": [asdict(entry) | {"state": entry.state.value} for entry in coverage],
        "load": {
            "asked": load.asked,
            "delivered": load.delivered,
            "delivered_ratio": load.ratio,
            "undelivered": dict(load.undelivered),
            "outcomes": tally.outcomes,
            "in_gaps": dict(tally.in_gaps),
            "late_samples": tally.late_samples,
            "schedule_lag_s": tally.schedule_lag.figures(),
            "loop_lag_s": tally.loop_lag.figures(),
        },
        "gaps": [dict(gap) for gap in gaps],
        "requests": {shape: requests.as_dict() for shape, requests in tally.requests.items()},
    }


def _utc(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone")
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _incidents(report: DetectorReport, facts: Mapping[Alarm, Mapping[str, Any]]) -> list[str]:
    """Ids, those that prove the most first."""
    ranked = sorted(report.alarms, key=lambda alarm: alarm.verdict is not Verdict.CORRUPT)
    return [str(facts[alarm]["id"]) for alarm in ranked if "id" in facts.get(alarm, {})]


def _detector(report: DetectorReport, facts: Mapping[Alarm, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "verdict": report.verdict.value,
        "statement": report.statement,
        "reasons": list(report.reasons),
        "alarms": [
            asdict(alarm)
            | {"verdict": alarm.verdict.value, "probes": list(alarm.probes)}
            | dict(facts.get(alarm, {}))
            for alarm in report.alarms
        ],
        "kinds": [asdict(kind) for kind in report.kinds],
        "log_evidence": dict(report.log_evidence),
        "log_bar": report.log_bar,
        "log_sum": report.log_sum,
        "log_sum_paired": report.log_sum_paired,
        "log_channels": {stream: dict(channels) for stream, channels in report.log_channels.items()},
    }


def _probes(tally: Tally) -> dict[str, Any]:
    """``valid_share``: of the probes whose victim was still cached; None when there was none."""
    outcomes, valid = tally.probe_outcomes, tally.probes_valid
    still_cached = sum(outcomes.values()) - tally.victims_evicted
    return {
        "total": sum(outcomes.values()),
        "valid": valid,
        "valid_share": valid / still_cached if still_cached else None,
        "invalid": tally.probes_invalid,
        "hard_alarms": tally.hard_alarms,
        "victims_evicted": tally.victims_evicted,
        "tokens_spent": sum(probes.tokens_spent for probes in tally.probes.values()),
        "seconds": tally.probe_seconds.figures(),
        "by_shape": {shape: dict(probes.outcomes) for shape, probes in tally.probes.items()},
    }


def as_json(summary: Mapping[str, Any]) -> bytes:
    """The summary as indented JSON with sorted keys; NaN and infinity become null."""
    options = (
        orjson.OPT_SORT_KEYS
        | orjson.OPT_INDENT_2
        | orjson.OPT_APPEND_NEWLINE
        | orjson.OPT_NON_STR_KEYS
        | orjson.OPT_SERIALIZE_NUMPY
    )
    return orjson.dumps(summary, option=options)


def write_atomically(path: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary such that a reader finds the old file or the new one, never half of one.

    The folder is made if missing. Raises OSError when the disk refuses; nothing is left behind then.
    """
    data = as_json(summary)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
