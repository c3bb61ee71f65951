"""From a journal to a trace: what was sent around an incident, with all ids, what came back, and the case.

A trace holds what went to the server or leaves it out and says so. It sends nothing and writes nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from soak.incident.about import About
from soak.incident.incident import Incident
from soak.incident.journal_codec import Array
from soak.incident.journal_ids import IdsMissing, SentIds, TraceUnavailable
from soak.incident.journal_reader import JournalReader, ProbeRow, PromptRow
from soak.incident.journal_recipe import agreement
from soak.incident.trace import Acted, Case, Origin, Seen, Sent, Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from soak.sglang.exchange import TokenIds


def trace_of(journal: JournalReader, name: str) -> Trace:
    """The trace of an incident. Raises UnknownIncident, TraceUnavailable, JournalUnusable."""
    return read_trace(journal, name)[0]


def read_incident(journal: JournalReader, name: str) -> tuple[Trace, About]:
    """Both, for the work of one. Raises as trace_of."""
    incident = journal.incident(name)
    trace, notes = read_trace(journal, incident.id)
    session = journal.session(_session(incident))
    alarm = asdict(incident.alarm) | {"verdict": incident.alarm.verdict.value}
    return trace, About(
        seed=session.seed,
        nonce=session.nonce,
        run_id=session.run_id,
        spec=session.spec,
        spec_digest=session.spec_digest,
        fingerprint=session.fields,
        soak_version=session.soak_version,
        alarm={**alarm, "probes": list(incident.alarm.probes), "id": incident.id},
        evidence=incident.alarm.evidence,
        notes=tuple(notes),
        decisions=tuple(journal.decisions(session.run_id)),
    )


def _session(incident: Incident) -> int:
    if incident.session is None:
        raise TraceUnavailable(
            f"incident {incident.id}: no probe of it is in the journal, so it has no trace"
        )
    return incident.session


def read_trace(journal: JournalReader, name: str) -> tuple[Trace, list[str]]:
    """The trace, and in sentences what could not be put into it. Raises as trace_of."""
    incident = journal.incident(name)
    probe = journal.probe(_session(incident), incident.number or 0)
    if probe is None:
        raise TraceUnavailable(f"incident {incident.id}: its probe is not in the journal any more")
    ids = SentIds(journal)
    ranges = () if incident.released_us is not None else incident.ranges
    rows = {row.seq: row for row in [*journal.prompts(ranges), *_own_rows(journal, ids, probe)]}
    kept, missing = [], []
    for row in sorted(rows.values(), key=lambda row: (row.sent_us, row.seq)):
        try:
            ids.of(row)
        except IdsMissing as error:
            missing.append(str(error))
        else:
            kept.append(row)
    start_us = min((row.intended_us for row in kept), default=probe.started_us)
    place = {row.seq: at for at, row in enumerate(kept)}
    sent, seen = _side_by_side(kept, ids, place, start_us)
    case = _case(journal, probe, ids, place, start_us)
    notes = [incident.note] if incident.note else []
    if missing:
        notes.append(f"{len(missing)} prompts could not be made again and are left out: {missing[0]}")
    acted = tuple(
        Acted(
            name=row.name,
            at_us=row.began_us - start_us,
            took_us=max(0, (row.ended_us or row.began_us) - row.began_us),
            settings=row.settings,
            target=row.target,
        )
        for row in journal.deeds(ranges)
    )
    return Trace(sent, seen, case, acted), notes


def _own_rows(journal: JournalReader, ids: SentIds, probe: ProbeRow) -> list[PromptRow]:
    """The probe's own passes, and the prompts that wrote its victim, wherever they lie."""
    rows = _passes(journal, probe)
    try:
        victim: PromptRow | None = ids.load_row(probe.session, *_victim(probe))
        while victim is not None:
            rows.append(victim)
            victim = ids.parent(victim)
    except IdsMissing:
        return rows  # the incident's note says that its victim is gone
    return rows


def _victim(probe: ProbeRow) -> tuple[int, int, int]:
    index, step, part = probe.facts.get("victim", (-1, 0, 0))
    return index, step, part


def _passes(journal: JournalReader, probe: ProbeRow) -> list[PromptRow]:
    return journal.passes(probe.session, probe.number) if probe.number > 0 else []


def _side_by_side(
    rows: list[PromptRow], ids: SentIds, place: dict[int, int], start_us: int
) -> tuple[tuple[Sent, ...], tuple[Seen, ...]]:
    requests: dict[Any, int] = {}
    sent, seen = [], []
    for row in rows:
        sent.append(_sent(row, ids, place, requests, start_us))
        seen.append(
            Seen(
                outcome=row.outcome,
                finished_us=row.finished_us - start_us,
                cached_tokens=row.cached,
                cached_host_tokens=row.host,
                num_retractions=row.retractions,
                output_ids=row.output_ids,
            )
        )
    return tuple(sent), tuple(seen)


def _sent(
    row: PromptRow, ids: SentIds, place: dict[int, int], requests: dict[Any, int], start_us: int
) -> Sent:
    """One row as it was sent; ``requests`` numbers requests as they come."""

    def request(key: Any) -> int:
        return requests.setdefault(key, len(requests))

    at_us, sent_us, own = row.intended_us - start_us, row.sent_us - start_us, ids.of(row)
    if row.origin is not Origin.LOAD:
        parent, inherits = _from_victim(row, own, ids, place)
        return Sent(
            index=row.index,
            step=row.step,
            part=0,
            origin=row.origin,
            shape=row.recipe["shape"],
            request=request(row.seq),
            at_us=at_us,
            sent_us=sent_us,
            ids=own,
            max_new_tokens=row.max_new_tokens,
            temperature_milli=row.temperature_milli,
            return_logprob=row.start is not None,
            logprob_start_len=row.start,
            parent=parent,
            inherits=inherits,
            namespace=_namespace(row, ids),
            adapter=_adapter_of_victim(row, ids),
        )
    item, before = ids.item(row), ids.parent(row)
    within = before is not None and before.seq in place
    return Sent(
        index=row.index,
        step=row.step,
        part=row.part,
        origin=row.origin,
        shape=item.shape,
        request=request((row.session, row.index, row.step) if item.batched else row.seq),
        at_us=at_us,
        sent_us=sent_us,
        ids=own,
        max_new_tokens=item.max_new_tokens,
        temperature_milli=item.temperature_milli,
        stream=item.stream,
        return_logprob=item.return_logprob,
        parent=place[before.seq] if before is not None and within else None,
        inherits=before.length + len(before.output_ids) if before is not None and within else 0,
        namespace=_namespace(row, ids),
        abort_us=row.abort_us,
        adapter=ids.adapter(row),
        code=ids.code(row),
    )


def _adapter_of_victim(row: PromptRow, ids: SentIds) -> str:
    try:
        return ids.adapter(ids.victim(row))
    except IdsMissing:
        return ""


def _from_victim(
    row: PromptRow, own: TokenIds, ids: SentIds, place: dict[int, int]
) -> tuple[int | None, int]:
    """Where a pass goes on from its victim: the victim's place in the trace and how much of it was sent."""
    try:
        victim = ids.victim(row)
        if victim.seq not in place:
            return None, 0
        shared = agreement(own, ids.whole(victim))
    except IdsMissing:
        return None, 0
    return (place[victim.seq], shared) if shared else (None, 0)


def _namespace(row: PromptRow, ids: SentIds) -> str:
    """A name that keeps namespaces apart; two processes may have given the same. An adapter's name stays."""
    if row.namespace in ids.plan(row.session).spec.geometry.adapters:
        return f"={row.namespace}"
    return "" if row.namespace is None else f"{row.session}/{row.namespace}"


def _case(
    journal: JournalReader, probe: ProbeRow, ids: SentIds, place: dict[int, int], start_us: int
) -> Case:
    try:
        return _asked(journal, probe, ids, place, start_us)
    except IdsMissing as error:
        raise TraceUnavailable(f"what probe {probe.number} asked cannot be made again: {error}") from error


def _asked(
    journal: JournalReader, probe: ProbeRow, ids: SentIds, place: dict[int, int], start_us: int
) -> Case:
    passes = _passes(journal, probe)
    by_name = {row.what: row for row in reversed(passes)}
    answer_len = 0
    kind = ResumeKind(probe.facts["kind"])
    if probe.number < 0:
        row = ids.load_row(probe.session, *_victim(probe))
        question, start = ids.whole(row), row.length - 1
        namespace, at_us = _namespace(row, ids), row.sent_us
    else:
        # of what was generated, the question is the cold pass that holds all of it
        first = "cold" if kind is ResumeKind.DECODE_BATCH else "warm"
        asked = by_name.get(first) or by_name.get("cold") or (passes[-1] if passes else None)
        if asked is None:
            raise IdsMissing("none of its passes is in the journal any more")
        question = ids.of(asked)
        start = len(question) - 1 if asked.start is None else asked.start
        namespace, at_us = _namespace(by_name.get("warm", asked), ids), passes[0].sent_us
        answer_len = _answer_len(by_name.get("continuation"), question, start)
        if asked.what not in ("warm", "locate"):
            namespace = ""
    victim = None if kind.invariance else _place_of_victim(probe, ids, place)
    arrays, scored = probe.arrays, len(question) - start - 1
    warm = arrays.get("warm", arrays.get("served", np.empty(0)))
    outcome = ProbeOutcome(probe.outcome)
    if outcome is ProbeOutcome.VALID and len(warm) != scored:
        raise TraceUnavailable(
            f"the logprobs of probe {probe.number} are not in the journal any more: it was one of many that "
            "looked healthy"
        )
    return Case(
        number=probe.number,
        kind=kind,
        shape=probe.facts["shape"],
        stream=probe.stream,
        ids=question,
        start=start,
        warm=warm,
        cold=arrays.get("cold", np.empty(0)),
        control=_control(by_name.get("control"), ids, question, start, arrays),
        namespace=namespace,
        victim=victim,
        answer_len=answer_len,
        at_us=max(0, at_us - start_us),
        outcome=outcome,
        detail=probe.facts.get("detail", ""),
        cold_again=arrays.get("confirming cold", arrays.get("cold repeat")),
        steps=_steps(passes, by_name.get("warm")),
        adapter=_adapter_of_case(probe, ids),
        beside=_beside(passes, by_name.get("warm")),
    )


def _steps(passes: list[PromptRow], warm: PromptRow | None) -> tuple[int, ...]:
    """Where the steps ended that wrote the ids before an invariance probe's other way was scored."""
    if warm is None:
        return ()
    return tuple(row.length for row in passes if row.what == "step" and row.namespace == warm.namespace)


def _beside(passes: list[PromptRow], warm: PromptRow | None) -> tuple[int, ...]:
    """Lengths of the prompts of an invariance probe's request with others, in their order, 0 for its own."""
    if warm is None:
        return ()
    rows = [row for row in passes if row.what in ("companion", "warm") and row.namespace == warm.namespace]
    return tuple(0 if row is warm else row.length for row in rows) if len(rows) > 1 else ()


def _adapter_of_case(probe: ProbeRow, ids: SentIds) -> str:
    try:
        return ids.adapter(ids.load_row(probe.session, *_victim(probe)))
    except IdsMissing:
        return ""


def _place_of_victim(probe: ProbeRow, ids: SentIds, place: dict[int, int]) -> int | None:
    try:
        return place.get(ids.load_row(probe.session, *_victim(probe)).seq)
    except IdsMissing:
        return None


def _answer_len(continuation: PromptRow | None, question: TokenIds, start: int) -> int:
    """Tokens of a cold continuation at the end of the question, 0 where there is none or it was cut."""
    if continuation is None:
        return 0
    answer = continuation.output_ids
    whole = len(answer) <= len(question) - start and np.array_equal(question[-len(answer) :], answer)
    return len(answer) if whole and len(answer) else 0


def _control(
    row: PromptRow | None, ids: SentIds, question: TokenIds, start: int, arrays: dict[str, Array]
) -> Array | None:
    """The control's logprobs, where it scored the same ids from the same boundary; decode writes its own."""
    values = arrays.get("control")
    if row is None or values is None or row.start != start or len(values) != len(question) - start - 1:
        return None
    return values if np.array_equal(ids.of(row), question) else None
