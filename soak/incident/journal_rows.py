"""What goes into the journal, row by row: a prompt of load, a pass of the oracle, the facts of a probe.

Plain conversion: seconds of the monotonic clock become microseconds since 1970, ids become a digest and, for
a pass, a recipe. Of a load prompt no ids are kept but those that came back: the plan makes the others again.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import orjson

from soak.drive.deed import Deed
from soak.drive.observation import Observation
from soak.incident.journal_codec import digest8, pack_ids
from soak.incident.journal_recipe import Source, describe
from soak.incident.trace import Origin
from soak.oracle.divergence import Divergence
from soak.oracle.probe import ProbeResult
from soak.oracle.prober import PassSeen
from soak.sglang.exchange import Answer, TokenIds

ORIGINS = (Origin.LOAD, Origin.PROBE, Origin.CONTROL)

PROMPT_COLUMNS = (
    "session, origin, idx, step, part, finished_us, took_us, lag_us, outcome, detail, length, "
    "prompt_tokens, completion_tokens, cached, host, retractions, digest, output, namespace, abort_us, pass, "
    "max_new_tokens, temperature_milli, start, recipe, literal"
)
_VALUES = f"({', '.join('?' * 26)})"
INSERT_PROMPT = f"INSERT INTO prompts ({PROMPT_COLUMNS}) VALUES {_VALUES}"  # noqa: S608 - constants
_AT_ONCE = (256, 16)  # rows of one statement; SQLite takes 32,766 values
_LONGEST_DETAIL = 300


@dataclass(frozen=True, slots=True)
class Clock:
    """offset_us: microseconds since 1970 at second 0 of the monotonic clock, as measured once a session."""

    offset_us: int

    def us(self, monotonic_s: float) -> int:
        """Microseconds since 1970."""
        return self.offset_us + round(monotonic_s * 1e6)


def storable(text: str) -> str:
    """A server's words, cut, and without what is no text (a lone surrogate), which no database takes."""
    return text[:_LONGEST_DETAIL].encode("utf-8", "replace").decode("utf-8")


def _answered(answer: Answer, ids: TokenIds) -> tuple[Any, ...]:
    return (
        answer.outcome.value,
        None if answer.ok else storable(answer.detail),
        len(ids),
        answer.prompt_tokens,
        answer.completion_tokens,
        answer.cached_tokens,
        answer.cached_details.get("host", 0),
        answer.num_retractions,
        digest8(ids),
        pack_ids(answer.output_ids),
    )


def load_row(session: int, seen: Observation, clock: Clock) -> tuple[Any, ...]:
    """Values for INSERT_PROMPT."""
    item, answer = seen.item, seen.answer
    finished = clock.us(answer.finished_s)
    sent = clock.us(answer.sent_s)
    return (
        session,
        0,
        item.index,
        item.step,
        seen.part,
        finished,
        finished - sent,
        sent - clock.us(seen.intended_s),
        *_answered(answer, seen.ids),
        seen.namespace,
        seen.abort_us,
        *(None,) * 6,
    )


def insert_prompts(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """All of them, in few statements.

    After each one the thread waits for the GIL, and an event loop that lets go of it a thousand times a
    second wakes the thread each time, mostly in vain.
    """
    done = 0
    for count in _AT_ONCE:
        statement = INSERT_PROMPT + f", {_VALUES}" * (count - 1)
        while len(rows) - done >= count:
            db.execute(statement, tuple(chain.from_iterable(rows[done : done + count])))
            done += count
    db.executemany(INSERT_PROMPT, rows[done:])


def pass_row(
    session: int, seen: PassSeen, place: int, sources: Mapping[Source, TokenIds], clock: Clock
) -> tuple[Any, ...]:
    """Values for INSERT_PROMPT. place: its number among the passes of its probe; sources: for its recipe."""
    sent, answer = seen.sent, seen.sent.answer
    recipe = describe(sent.ids, sources)
    finished = clock.us(answer.finished_s)
    return (
        session,
        2 if seen.control else 1,
        seen.number,
        place,
        0,
        finished,
        finished - clock.us(answer.sent_s),
        0,
        *_answered(answer, sent.ids),
        sent.namespace,
        None,
        sent.what,
        sent.max_new_tokens,
        round(sent.temperature * 1000),
        sent.start,
        orjson.dumps(_recipe(seen, recipe.pieces)).decode(),
        pack_ids(recipe.literal),
    )


def _recipe(seen: PassSeen, pieces: tuple[Any, ...]) -> dict[str, Any]:
    """A recipe with what its sources are, for JSON."""
    victim, tail = seen.victim, seen.tail
    return {
        "shape": victim.shape,
        "victim": [victim.index, victim.step, victim.part],
        "tail": [tail.purpose, tail.key, tail.start, tail.length],
        "pieces": pieces,
    }


def _short(value: Any) -> Any:
    """Floats to six digits; what JSON has no number for becomes null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return value


def _figures(found: Divergence | None) -> dict[str, Any] | None:
    return None if found is None else _short(asdict(found))


def probe_facts(result: ProbeResult) -> dict[str, Any]:
    """A probe's result without its arrays, in short: plain values for JSON, what is missing left out."""
    facts: dict[str, Any] = {
        "shape": result.shape,
        "kind": result.kind.value,
        "detail": storable(result.detail),
        "victim": [result.victim_index, result.victim_step, result.victim_part],
        "victim_age_s": _short(result.victim_age_s),
        "victim_tokens": result.victim_tokens,
        "under_load": result.under_load,
        "resume_boundary": result.resume_boundary,
        "divergence": _figures(result.divergence),
        "control": _figures(result.control),
        "control_note": storable(result.control_note),
        "ways": storable(result.ways),
        "cold_repeat": _figures(result.cold_repeat),
        "served": _figures(result.served),
        "confirmation": _figures(result.confirmation),
        "amnesia": None if result.amnesia is None else _short(asdict(result.amnesia)),
    }
    return {name: value for name, value in facts.items() if value not in (None, "", False)}


INSERT_PROBE = "INSERT OR REPLACE INTO probes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def probe_row(
    session: int,
    number: int,
    times: tuple[int, int],
    result: ProbeResult,
    facts: Mapping[str, Any],
    *,
    suspicious: bool,
    arrays: bytes | None,
) -> tuple[Any, ...]:
    """Values for INSERT_PROBE. times: started and finished; arrays: as pack_arrays gives them."""
    said = orjson.dumps(facts).decode()
    return session, number, *times, result.stream, result.outcome.value, said, int(suspicious), arrays


INSERT_DEED = "INSERT OR REPLACE INTO deeds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def deed_row(session: int, deed: Deed, clock: Clock) -> tuple[Any, ...]:
    """Values for INSERT_DEED."""
    return (
        session,
        deed.number,
        deed.name,
        deed.target,
        clock.us(deed.began_s),
        None if deed.ended_s is None else clock.us(deed.ended_s),
        orjson.dumps(dict(deed.settings)).decode(),
        deed.outcome,
        storable(deed.detail),
    )
