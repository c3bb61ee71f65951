"""Which published faults an incident could be: those with no condition known not to have held. Pure.

A candidate is a reason to look there first, never a finding: most conditions cannot be seen from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from soak.drive.deed import ABORT_STORM, PAUSE, PRESSURE, RETRACTION
from soak.incident.about import About
from soak.incident.history import History
from soak.incident.trace import Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.runners.exposure import Exposure, exposures, mended_by
from soak.runners.faults import FAULTS, KnownFault
from soak.runners.flags import SERVER_FLAGS

_SHORT = 3  # tokens a short convolution reaches back
_OF_DECODE = {"decode_past_interval", "ends_before_boundary"}  # they spoil what decode writes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fault that nothing rules out. held, unseen: its conditions, by whether the trace or the server's
    flags show that they held, or say nothing."""

    fault: KnownFault
    held: tuple[str, ...]
    unseen: tuple[str, ...]


def candidates(trace: Trace, history: History, about: About) -> list[Candidate]:
    """Faults that fit: of the way the state was written first, then those with most conditions seen."""
    said = _server_words(about.fingerprint)
    ruled_out: set[str] = set()
    if not about.fingerprint.get("simulator"):  # a simulator has the faults it was told to have
        ruled_out = {
            seen.fault.name
            for seen in exposures(
                str(about.fingerprint.get("version", "")), said, mended_by(about.fingerprint)
            )
            if seen.exposure in (Exposure.FIXED, Exposure.RULED_OUT)
        }
    conditions = _conditions(trace, history, about, said)
    found = []
    for fault in FAULTS:
        if fault.name in ruled_out or not _of_this_kind(fault, trace.case.outcome):
            continue
        held = {c.name: conditions.get(c.name) for c in fault.conditions}
        if False in held.values():
            continue
        found.append(
            Candidate(
                fault,
                tuple(c.words for c in fault.conditions if held[c.name]),
                tuple(c.words for c in fault.conditions if held[c.name] is None),
            )
        )
    decoded = trace.case.kind is ResumeKind.DECODE

    def rank(one: Candidate) -> tuple[bool, int, int]:
        of_decode = any(condition.name in _OF_DECODE for condition in one.fault.conditions)
        return of_decode is not decoded, -len(one.held), len(one.unseen)

    return sorted(found, key=rank)


def _of_this_kind(fault: KnownFault, outcome: ProbeOutcome) -> bool:
    """Faults without conditions are told apart by what they look like."""
    if fault.name == "nan-logprob":
        return outcome is ProbeOutcome.NON_FINITE
    if fault.name == "identity-swap":
        return outcome is ProbeOutcome.BROKEN_INVARIANT
    return outcome is ProbeOutcome.VALID


def _server_words(fingerprint: Mapping[str, object]) -> dict[str, object]:
    """The fingerprint's fields as the server says them, nested where it nests."""
    said: dict[str, object] = {}
    graphs: dict[str, dict[str, object]] = {}
    for name, value in fingerprint.items():
        parts = name.split(".")
        if parts[0] == "cuda_graph_config" and len(parts) == 3:
            graphs.setdefault(parts[1], {})[parts[2]] = value
        elif name == "architectures" and isinstance(value, str):
            said[name] = value.split(",")
        else:
            said[name] = value
    return said | ({"cuda_graph_config": graphs} if graphs else {})


def _conditions(
    trace: Trace, history: History, about: About, said: Mapping[str, object]
) -> dict[str, bool | None]:
    """Each condition that flags, geometry or trace can speak to: held, did not hold, or None."""
    read = {name: flag.reads(said) for name, flag in SERVER_FLAGS.items()}
    geometry = about.spec.get("geometry")
    known: Mapping[str, object] = geometry if isinstance(geometry, dict) else {}
    held: dict[str, bool | None] = dict(read)
    if isinstance(known.get("hybrid"), bool):
        held["hybrid"] = bool(known["hybrid"])
    if isinstance(known.get("window"), int):
        held["sliding_window"] = True
    hit = trace.case.start > 0
    held["prefix_hit"] = hit if trace.case.outcome is ProbeOutcome.VALID else None
    held["fresh_request"] = None
    # it spoils no cache: only what was generated beside others can be it
    held["wide_decode"] = None if trace.case.kind is ResumeKind.DECODE_BATCH else False
    together = bool(history.beside_writer) or _any_together(trace)
    held["co_batched_prefill"] = held["others_decoding"] = together
    acted = {each.name for each in trace.acted}
    pauses = {each.settings.get("mode", "abort") for each in trace.acted if each.name == PAUSE}
    held["retraction"] = (
        bool(history.retracted)
        or trace.case.kind is ResumeKind.RETRACTED
        or bool(acted & {RETRACTION, PRESSURE})
        or "retract" in pauses
    )
    held["host_hit"] = bool(history.from_host) or trace.case.kind is ResumeKind.HOST
    held["abort_while_loading"] = bool(history.aborted) or ABORT_STORM in acted or "abort" in pauses
    held["shared_again"] = True if history.touched else None
    held["short_tail"] = any(
        0 < len(trace.sent[touch.place].ids) - trace.seen[touch.place].cached_tokens <= _SHORT
        for touch in history.touched
    )
    held |= _of_the_writing(trace, history, known)
    return held


def _any_together(trace: Trace) -> bool:
    """Whether any two prompts of different requests, or of one batched request, were under way at once."""
    latest = -1
    for sent, seen in zip(trace.sent, trace.seen, strict=True):
        if sent.sent_us < latest:
            return True
        latest = max(latest, seen.finished_us)
    return False


def _of_the_writing(trace: Trace, history: History, geometry: Mapping[str, object]) -> dict[str, bool | None]:
    """What the writing of the prefix says; nothing where the writer is not in the trace."""
    if history.writer is None:
        return {}
    sent, seen = trace.sent[history.writer], trace.seen[history.writer]
    interval, grid, chunk = (
        value if isinstance(value := geometry.get(name), int) and value > 1 else None
        for name in ("track_interval", "state_grid", "chunk")
    )
    end = len(sent.ids) + len(seen.output_ids)
    held: dict[str, bool | None] = {}
    if interval is not None:
        held["decode_past_interval"] = end // interval > len(sent.ids) // interval
        held["ends_before_boundary"] = (end + 1) % interval == 0
    if grid is not None:
        held["off_grid_branch"] = any(touch.shared % grid for touch in history.touched) or None
        held["chunked_prefill"] = len(sent.ids) - seen.cached_tokens >= min(grid, chunk or grid)
    return held
