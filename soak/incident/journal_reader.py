"""Reading a journal, beside a run or after it: incidents and the rows they are about. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.incident.incident import SELECT_INCIDENTS, Incident, Range, incident_of
from soak.incident.journal_codec import Array, unpack_arrays, unpack_ids
from soak.incident.journal_file import JournalFile, JournalUnusable, decisions_in
from soak.incident.journal_pruning import LATE_US
from soak.incident.journal_rows import ORIGINS, PROMPT_COLUMNS
from soak.incident.trace import Origin
from soak.sglang.exchange import TokenIds


class UnknownIncident(Exception):
    """The journal has no incident of that id."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One process that wrote: its plan and its server. spec, fields, config: plain values."""

    number: int
    run_id: str
    seed: int
    nonce: int
    shard: int
    shards: int
    plan_version: int
    spec_digest: str
    spec: dict[str, Any]
    fingerprint: str
    fields: dict[str, Any]
    config: dict[str, Any]
    target: str
    soak_version: str
    started_us: int


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt of load (index, step, part of the plan) or one pass (probe number, which pass, 0).

    Times in microseconds since 1970. recipe and literal make a pass's ids; load's are the plan's.
    """

    seq: int
    session: int
    origin: Origin
    index: int
    step: int
    part: int
    finished_us: int
    sent_us: int
    intended_us: int
    outcome: str
    detail: str
    length: int
    prompt_tokens: int
    completion_tokens: int
    cached: int
    host: int
    retractions: int
    digest: bytes
    output_ids: TokenIds
    namespace: str | None
    abort_us: int | None
    what: str
    max_new_tokens: int
    temperature_milli: int
    start: int | None
    recipe: dict[str, Any] = field(default_factory=dict)
    literal: TokenIds | None = None


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One probe; facts as journal_rows.probe_facts gives them; arrays by pass, empty where let go of."""

    session: int
    number: int
    started_us: int
    finished_us: int
    stream: str
    outcome: str
    facts: dict[str, Any]
    arrays: dict[str, Array]


@dataclass(frozen=True, slots=True)
class DeedRow:
    """An action of an experiment. Microseconds since 1970; ended_us None where its end is not known."""

    session: int
    number: int
    name: str
    target: str
    began_us: int
    ended_us: int | None
    settings: dict[str, Any]
    outcome: str
    detail: str


class JournalReader:
    """An open journal, for reading. Raises JournalUnusable."""

    def __init__(self, path: Path) -> None:
        self._file = JournalFile(path, writing=False)
        self.path = self._file.path
        self._sessions: dict[int, SessionRow] = {}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _rows(self, statement: str, given: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self._file.in_words():
            return self._file.db.execute(statement, tuple(given)).fetchall()

    def _damaged(self, what: str, error: Exception) -> JournalUnusable:
        return JournalUnusable(f"{self.path}: {what} cannot be read ({error}); the journal is damaged there")

    def session(self, number: int) -> SessionRow:
        """One process that wrote, by its number in the journal."""
        if number not in self._sessions:
            rows = self._rows("SELECT * FROM sessions WHERE id = ?", (number,))
            if not rows:
                raise JournalUnusable(f"{self.path}: session {number} is missing; the journal is damaged")
            values = list(rows[0])
            try:
                for place in (8, 10, 11):
                    values[place] = json.loads(values[place])
            except ValueError as error:
                raise self._damaged(f"session {number}", error) from error
            self._sessions[number] = SessionRow(*values)
        return self._sessions[number]

    def incidents(self) -> list[Incident]:
        """All of them, oldest first."""
        rows = self._rows(f"{SELECT_INCIDENTS} ORDER BY raised_us, id")
        try:
            return [incident_of(row) for row in rows]
        except (ValueError, KeyError) as error:
            raise self._damaged("an incident", error) from error

    def incident(self, name: str) -> Incident:
        """The incident of that id, or of an unambiguous beginning of it. Raises UnknownIncident."""
        found = [incident for incident in self.incidents() if incident.id.startswith(name)]
        exact = [incident for incident in found if incident.id == name]
        if exact:
            return exact[0]
        if not name or len(found) != 1:
            why = "several begin so" if name and found else "there is none of that id"
            raise UnknownIncident(
                f"incident {name}: {why} in {self.path}; `soak incidents` lists those there are"
            )
        return found[0]

    def prompts(self, ranges: Iterable[Range]) -> list[PromptRow]:
        """All prompts that were under way at some time inside the ranges, in order of sending."""
        found: dict[int, PromptRow] = {}
        for low, high in ranges:
            for row in self._rows(
                f"SELECT seq, {PROMPT_COLUMNS} FROM prompts WHERE finished_us BETWEEN ? AND ? "  # noqa: S608
                "AND finished_us - took_us <= ?",
                (low, high + LATE_US, high),
            ):
                found[row[0]] = self._prompt(row)
        return sorted(found.values(), key=lambda row: (row.sent_us, row.seq))

    def load_prompts(self, session: int, index: int, most_step: int) -> list[PromptRow]:
        """The prompts of one index of a plan up to that step."""
        rows = self._rows(
            f"SELECT seq, {PROMPT_COLUMNS} FROM prompts WHERE session = ? AND origin = 0 "  # noqa: S608
            "AND idx = ? AND step <= ? ORDER BY step, part",
            (session, index, most_step),
        )
        return [self._prompt(row) for row in rows]

    def passes(self, session: int, number: int) -> list[PromptRow]:
        """The passes of one probe, or of the control that had its number, in order."""
        rows = self._rows(
            f"SELECT seq, {PROMPT_COLUMNS} FROM prompts WHERE session = ? AND origin IN (1, 2) "  # noqa: S608
            "AND idx = ? ORDER BY step",
            (session, number),
        )
        return [self._prompt(row) for row in rows]

    def _prompt(self, row: tuple[Any, ...]) -> PromptRow:
        seq, session, origin, index, step, part, finished, took, lag, outcome, detail, *rest = row
        length, prompt_tokens, completion_tokens, cached, host, retractions, digest, output, *rest = rest
        namespace, abort_us, what, max_new, temperature_milli, start, recipe, literal = rest
        try:
            return PromptRow(
                seq=seq,
                session=session,
                origin=ORIGINS[origin],
                index=index,
                step=step,
                part=part,
                finished_us=finished,
                sent_us=finished - took,
                intended_us=finished - took - lag,
                outcome=outcome,
                detail=detail or "",
                length=length,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                cached=cached,
                host=host,
                retractions=retractions,
                digest=digest,
                output_ids=unpack_ids(output),
                namespace=namespace,
                abort_us=abort_us,
                what=what or "",
                max_new_tokens=max_new or 0,
                temperature_milli=temperature_milli or 0,
                start=start,
                recipe=json.loads(recipe) if recipe else {},
                literal=unpack_ids(literal),
            )
        except (ValueError, IndexError) as error:
            raise self._damaged(f"prompt {seq}", error) from error

    def probe(self, session: int, number: int) -> ProbeRow | None:
        """One probe, None if the journal has let go of it."""
        rows = self._rows("SELECT * FROM probes WHERE session = ? AND number = ?", (session, number))
        if not rows:
            return None
        _, _, started_us, finished_us, stream, outcome, facts, _, arrays = rows[0]
        try:
            return ProbeRow(
                session=session,
                number=number,
                started_us=started_us,
                finished_us=finished_us,
                stream=stream,
                outcome=outcome,
                facts=json.loads(facts),
                arrays=unpack_arrays(arrays) if arrays else {},
            )
        except ValueError as error:
            raise self._damaged(f"probe {number}", error) from error

    def server_said(self, low_us: int, high_us: int) -> list[tuple[int, dict[str, Any]]]:
        """(when, what its metrics said), oldest first."""
        rows = self._rows(
            "SELECT at_us, said FROM server WHERE at_us BETWEEN ? AND ? ORDER BY at_us", (low_us, high_us)
        )
        return [(at_us, json.loads(said)) for at_us, said in rows]

    def deeds(self, ranges: Iterable[Range]) -> list[DeedRow]:
        """Actions of experiments in force at some time inside the ranges, in order of their begin."""
        if self._rows("PRAGMA user_version")[0][0] < 2:
            return []  # written by an older soak, which had none
        found: dict[tuple[int, int], DeedRow] = {}
        for low, high in ranges:
            for row in self._rows(
                "SELECT * FROM deeds WHERE began_us <= ? AND coalesce(ended_us, began_us) >= ?", (high, low)
            ):
                session, number, name, target, began, ended, settings, outcome, detail = row
                try:
                    said = json.loads(settings)
                    found[session, number] = DeedRow(
                        session, number, name, target, began, ended, said, outcome, detail
                    )
                except ValueError as error:
                    raise self._damaged(f"action {row[1]}", error) from error
        return sorted(found.values(), key=lambda row: (row.began_us, row.session, row.number))

    def decisions(self, run_id: str) -> list[dict[str, Any]]:
        """Rows of the decisions of an adaptive run, in their order."""
        return decisions_in(self._file, run_id)

    def next_index(self, run_id: str, shard: int, shards: int) -> int:
        """Where that shard of a run goes on: one past the last index of which anything was journalled.

        A run goes on under its own run id (seed, nonce and resolved spec), as a session of its own, with
        ``driver.run(first=...)``; 0 for a run that the journal does not know.
        """
        rows = self._rows(
            "SELECT last_index FROM progress WHERE run_id = ? AND shard = ? AND shards = ?",
            (run_id, shard, shards),
        )
        return int(rows[0][0]) + 1 if rows else 0
