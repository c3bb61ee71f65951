"""An incident in words, with a picture: what was asked, how far off the answer was, what had happened before.

Text only. It says what the journal holds; of causes, no more than which published faults nothing rules out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.drive.deed import LOAD
from soak.export.closing import counts, nats, printable, prompts, seconds, wrapped
from soak.export.picture import picture
from soak.incident.about import About
from soak.incident.candidates import Candidate
from soak.incident.history import History
from soak.incident.incident import Incident
from soak.incident.trace import Case, Origin, Trace, words_of
from soak.oracle.divergence import diverge
from soak.oracle.probe import PAIR_WORDS, ProbeOutcome

_MOST_LISTED = 6
_MOST_CANDIDATES = 5
_SERVER_FIGURES = (
    "running",
    "queued",
    "token_usage",
    "mamba_usage",
    "swa_usage",
    "retracted_total",
    "aborted_total",
    "evicted_tokens_total",
)


@dataclass(frozen=True, slots=True)
class Told:
    """All that is told of one incident. server: (microseconds since 1970, figures) around it."""

    incident: Incident
    trace: Trace
    about: About
    history: History
    candidates: Sequence[Candidate]
    server: Sequence[tuple[int, Mapping[str, Any]]] = ()
    said: str = ""
    replay_command: str = ""


def heading(incident: Incident, said: str = "") -> str:
    """One line: what was raised, on what, when; ``said``: what a person said of it."""
    alarm = incident.alarm
    line = f"{incident.id}  {alarm.verdict.value} by {alarm.channel} on {alarm.stream or alarm.shape}"
    line += f", {incident.raised_at}"
    return printable(line + (f", {said}" if said else ""))


def incident_words(told: Told) -> str:
    """Everything, as lines of text without trailing newline."""
    parts = [
        [heading(told.incident, told.said), *wrapped("  ", told.incident.alarm.evidence)],
        _asked(told),
        _how_far(told.trace.case),
        _before(told),
        _server(told),
        _known(told.candidates),
        _notes(told),
    ]
    return "\n\n".join("\n".join(printable(line) for line in part) for part in parts if part)


def without_trace(incident: Incident, why: str, said: str = "") -> str:
    """What can be said of an incident that has no trace."""
    lines = [heading(incident, said), *wrapped("  ", incident.alarm.evidence), "", *wrapped("", why)]
    return "\n".join(printable(line) for line in lines)


def _asked(told: Told) -> list[str]:
    case = told.trace.case
    lines = ["What was asked"]
    if case.number < 0:
        lines += wrapped(
            "  ", f"No probe: a {case.shape} prompt of load had an answer that is an alarm by itself."
        )
    else:
        lines += wrapped("  ", f"Probe {case.number} asked again for a prefix that {_writer(told)}.")
    scored = max(0, len(case.ids) - case.start - 1)
    if case.kind.invariance:
        return lines[:1] + wrapped(
            "  ",
            f"Probe {case.number} asked {PAIR_WORDS[case.kind]}: {len(case.ids):,} tokens, the last "
            f"{scored:,} of them scored.",
        )
    tail = "a continuation from a cold pass" if case.answer_len else "random tokens"
    lines += wrapped(
        "  ",
        f"{len(case.ids):,} tokens were sent, {tail} at their end; the server resumed at {case.start:,} from "
        f"what {case.kind.value} had written, and {scored:,} tokens after that were scored.",
    )
    if case.outcome is not ProbeOutcome.VALID:
        lines += wrapped("  ", f"It came to: {case.outcome.value.replace('_', ' ')}. {case.detail}")
    return lines


def _writer(told: Told) -> str:
    trace, writer = told.trace, told.history.writer
    if writer is None:
        return "a prompt wrote that is not in the trace"
    sent, seen = trace.sent[writer], trace.seen[writer]
    ago = (trace.case.at_us - seen.finished_us) / 1e6
    generated = f" and generated {len(seen.output_ids):,}" if len(seen.output_ids) else ""
    return (
        f"prompt {_name(trace, writer)} had written {seconds(max(0.0, ago))} before: it sent "
        f"{len(sent.ids):,} tokens, {seen.cached_tokens:,} of them cached{generated}"
    )


def _name(trace: Trace, place: int) -> str:
    sent = trace.sent[place]
    if sent.origin is Origin.LOAD:
        return f"{sent.index}.{sent.step}.{sent.part} ({sent.shape})"
    return f"{sent.origin.value} {sent.index} pass {sent.step}"


def _how_far(case: Case) -> list[str]:
    rows = [
        ("warm against cold", _compare(case.warm, case.cold)),
        ("cold again against cold", _compare(case.cold_again, case.cold)),
        ("control against cold", _compare(case.control, case.cold)),
    ]
    lines = ["How far off, nats"]
    for what, words in rows:
        if words:
            lines.append(f"  {what:<24} {words}")
    if len(lines) == 1:
        return []
    if len(case.warm) == len(case.cold) and len(case.warm):
        drawn = [float(x) for x in case.warm - case.cold if np.isfinite(x)]
        lines += [f"  {line}" for line in picture(drawn)]
    return lines


def _compare(one: npt.NDArray[np.float64] | None, cold: npt.NDArray[np.float64]) -> str:
    if one is None or len(one) != len(cold) or not len(one):
        return ""
    d = one - cold
    if not np.isfinite(d).all():
        place = int(np.flatnonzero(~np.isfinite(d))[0]) + 1
        return f"no number at token {place} after the resume boundary"
    found = diverge(one, cold)
    if found.zero:
        return f"the same to the last bit over {found.tokens:,} tokens"
    return (
        f"max |d| {nats(found.max_abs)}, median {nats(found.median_abs)}, k3 {nats(found.k3)}; from token "
        f"{found.onset} after the resume boundary on"
    )


def _before(told: Told) -> list[str]:
    trace, history = told.trace, told.history
    origins = Counter(sent.origin.value for sent in trace.sent)
    span = max((seen.finished_us for seen in trace.seen), default=0) / 1e6
    lines = ["What had happened"]
    lines += wrapped(
        "  ", f"The trace has {len(trace.sent):,} prompts over {seconds(span)}: {counts(origins)}."
    )
    if history.writer is not None:
        lines += wrapped(
            "  ", f"Under way while the prefix was written: {_listed(trace, history.beside_writer)}."
        )
    touched = [touch.place for touch in history.touched]
    lines += wrapped(
        "  ", f"Began with the same tokens between then and the probe: {_listed(trace, touched)}."
    )
    lines += wrapped("  ", f"Under way while the probe ran: {_listed(trace, history.beside_probe)}.")
    for acted in trace.acted:
        at_s, took_s = (acted.at_us - trace.case.at_us) / 1e6, acted.took_us / 1e6
        by_load = acted.target == LOAD
        where = f" on {acted.target}" if acted.target and not by_load else ""
        when = f"{at_s:+.1f} s from the probe, for {took_s:.1f} s"
        lines += wrapped(
            "  ", f"In force, by {'load' if by_load else 'an experiment'}: {words_of(acted)}{where}, {when}."
        )
    for places, words in (
        (history.aborted, "Taken back by the run"),
        (history.retracted, "Retracted by the server"),
        (history.from_host, "Loaded back from the host"),
    ):
        if places:
            lines += wrapped("  ", f"{words}: {_listed(trace, places)}.")
    return lines


def _listed(trace: Trace, places: Sequence[int]) -> str:
    if not places:
        return "nothing of ours"
    names = [_name(trace, place) for place in places[:_MOST_LISTED]]
    more = len(places) - len(names)
    return f"{prompts(len(places))}: {', '.join(names)}{f' and {more:,} more' if more else ''}"


def _server(told: Told) -> list[str]:
    fields = told.about.fingerprint
    what = f"{fields.get('served_model_name') or fields.get('model_path')}, version {fields.get('version')}"
    lines = ["The server", *wrapped("  ", f"{what}, fingerprint {told.incident.fingerprint}.")]
    nearest = sorted(told.server, key=lambda entry: abs(entry[0] - told.incident.raised_us))[:_MOST_LISTED]
    for at_us, said in sorted(nearest, key=lambda entry: entry[0]):
        figures = ", ".join(f"{name} {said[name]:.4g}" for name in _SERVER_FIGURES if said.get(name))
        after = (at_us - told.incident.raised_us) / 1e6
        lines.append(f"  {after:+6.1f} s from the alarm: {figures or 'idle'}")
    return lines


def _known(found: Sequence[Candidate]) -> list[str]:
    if not found:
        return ["Known faults: none of the table fits."]
    lines = ["Known faults that nothing rules out, those first that fit how the state was written"]
    for one in found[:_MOST_CANDIDATES]:
        report = f" ({one.fault.report})" if one.fault.report else ""
        lines += wrapped("  ", f"{one.fault.name}{report}: {one.fault.title}.")
        if one.held:
            lines += wrapped("    ", f"held: {'; '.join(one.held)}")
        if one.unseen:
            lines += wrapped("    ", f"cannot be seen from outside: {'; '.join(one.unseen)}")
    if len(found) > _MOST_CANDIDATES:
        lines.append(f"  and {len(found) - _MOST_CANDIDATES} more")
    return lines


def _notes(told: Told) -> list[str]:
    lines = [line for note in told.about.notes for line in wrapped("Note: ", note)]
    if told.replay_command:
        lines.append(f"Replay it:  {told.replay_command}")
    return lines
