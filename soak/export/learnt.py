"""What a calibration came to, in words. Text only; it decides nothing but which words are true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from soak.detect.verdict import Alarm, DetectorReport, KindCalibration
from soak.export.closing import nats, seconds, table, wrapped
from soak.export.panel import clock


@dataclass(frozen=True, slots=True)
class Learnt:
    """report: all that the detectors know now. missing: kinds that are wanted and not calibrated, beyond:
    those that this load or no load can calibrate, each with the reason.

    alarms: those that this calibration raised; facts: id and times of each standing alarm; lost: why the
    server counts as lost, empty if it does not; tokens: prefilled and generated for all of it.
    """

    report: DetectorReport
    fingerprint: str
    missing: Mapping[str, str]
    beyond: Mapping[str, str]
    simulator: bool = False
    alarms: tuple[Alarm, ...] = ()
    facts: Mapping[Alarm, Mapping[str, Any]] = field(default_factory=dict)
    lost: str = ""
    interrupted: bool = False
    seconds: float = 0.0
    tokens: int = 0

    @property
    def complete(self) -> bool:
        """Whether everything that the load plants is calibrated."""
        return bool(self.ready) and not self.missing

    @property
    def ready(self) -> tuple[KindCalibration, ...]:
        """Kinds that evidence, or exact mode, judges from now on."""
        return tuple(kind for kind in self.report.kinds if kind.ready)


def progress_line(
    elapsed_s: float, kinds: Sequence[KindCalibration], phase: str, tokens: int, waits_for: str
) -> str:
    """One line for now."""
    told = [
        f"{k.kind} {k.controls:,} of {k.controls_needed:,} controls"
        if not k.ready
        else f"{k.kind} ready ({k.mode})"
        for k in kinds
    ]
    parts = [f"{clock(elapsed_s)} calibrating {phase}", ", ".join(told) or "no prefix planted yet"]
    parts.append(f"{tokens:,} tokens spent")
    if waits_for:
        parts.append(f"waits for {waits_for}")
    return " | ".join(parts)


def learnt_words(learnt: Learnt, state: str) -> str:
    """What was learned, what was not, what to do with it. ``state``: the file that it is kept in."""
    lines = []
    if learnt.interrupted:
        lines.append(
            "INTERRUPTED: what was learned so far is kept, and the next calibration goes on from there."
        )
    if learnt.lost:
        lines.append(f"The server was lost: {learnt.lost}. What was learned so far is kept.")
    if learnt.simulator:
        lines.append("The target was soak's own simulator, not a real SGLang server.")
    for alarm in learnt.alarms:
        name = learnt.facts.get(alarm, {}).get("id", "")
        lines += wrapped(
            "  ",
            f"{alarm.verdict.value} by {alarm.channel} on {alarm.stream}: {alarm.evidence}"
            + (f" (alarm {name})" if name else ""),
        )
    if learnt.alarms:
        lines += wrapped(
            "",
            "An alarm was raised: a server that is corrupt now must not teach what is normal, so calibration "
            "stopped. Find out what it is, then `soak ack` it and calibrate a healthy server.",
        )
    if learnt.ready:
        lines += [
            f"Calibrated, in nats (this took {seconds(learnt.seconds)} and {learnt.tokens:,} tokens):",
            *_table(learnt.ready),
        ]
        lines += wrapped("  ", learnt.report.statement)
    lines.append("Not calibrated")
    for kind, why in [*learnt.missing.items(), *learnt.beyond.items()]:
        lines += wrapped("  ", f"{kind}: {why}")
    lines.append(f"Kept in {state} for the server with fingerprint {learnt.fingerprint}.")
    return "\n".join(lines)


def _table(kinds: Sequence[KindCalibration]) -> list[str]:
    """m0 as a share of the largest score; the share seen is of a stream's probes."""
    names = ("resumes from", "mode", "controls", "tau", "p0", "m0", "control floor", "cold floor")
    rows: list[tuple[str, ...]] = [names]
    for k in kinds:
        shares = ("-" if share is None else f"{share:.2g}" for share in (k.p0, k.m0))
        rows.append(
            (
                k.kind,
                k.mode,
                f"{k.controls:,}",
                nats(k.threshold),
                *shares,
                nats(k.control_floor),
                nats(k.cold_floor),
            )
        )
    return table(rows, numbers_from=2)
