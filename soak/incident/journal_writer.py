"""The one thread that writes the journal: takes what the run saw, in order, a transaction at least a second.

It never holds the event loop up: what comes faster than the disk takes it is dropped and counted, and a disk
that refuses is told of and tried again. An incident is never dropped. It judges nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from soak.drive.deed import Deed
from soak.drive.observation import Observation
from soak.incident.incident import complete_incidents, open_incident
from soak.incident.journal_codec import Array, pack_arrays
from soak.incident.journal_file import JournalFile, JournalUnusable
from soak.incident.journal_pruning import Keep, Pruner
from soak.incident.journal_recipe import Source
from soak.incident.journal_rows import (
    INSERT_DEED,
    INSERT_PROBE,
    Clock,
    deed_row,
    insert_prompts,
    pass_row,
    probe_facts,
    probe_row,
)
from soak.oracle.probe import ProbeResult
from soak.oracle.prober import PassSeen
from soak.plan.geometry import Geometry
from soak.sglang.exchange import TokenIds
from soak.store.alarms import StoredAlarm

_GATHER_S = 0.25  # how long rows wait for others to share a transaction with
_MOST_ROWS = 5000  # rows taken into one transaction
_MOST_QUEUED = 50_000
_MOST_QUEUED_BYTES = 64 << 20
_CLOSE_S = 10.0
_MOST_LOST = 100_000  # prompts known to be missing; more, and no recipe goes by a victim any more
_NUMBERS = 512  # probes whose passes are remembered at once
_RING = 256  # the latest unsuspicious probes whose arrays are kept
_FRONT_MARGIN_US = 60_000_000  # what is older than this after the pruning front may be pruned any moment


@dataclass(frozen=True, slots=True)
class Ran:
    """This process in the journal. number: its row among the sessions."""

    number: int
    run_id: str
    shard: int
    shards: int
    seed: int
    nonce: int
    geometry: Geometry
    clock: Clock


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load prompt as its row, made by whoever hands it over: what it was made of, thousands of objects in
    all that one thread makes and another lets go of, costs more to keep than to convert. place: its index,
    step and part."""

    row: tuple[Any, ...]
    place: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    """A probe's result; suspicious: worth keeping its arrays for as long as the journal goes back."""

    result: ProbeResult
    suspicious: bool


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A load prompt whose answer was an alarm by itself; number: below 0, for want of a probe."""

    number: int
    seen: Observation
    result: ProbeResult


@dataclass(frozen=True, slots=True)
class ServerSaid:
    """What the server's metrics said, plain values."""

    at_us: int
    said: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision of an adaptive run, as ``Decision.as_row`` gives it. Before any prompt planned by it."""

    at_us: int
    row: dict[str, Any]


Record = Loaded | PassSeen | ProbeEnded | Spoiled | ServerSaid | Deed | StoredAlarm | Decided


@dataclass(slots=True)
class _Passes:
    """The passes of one number so far, which the recipes of later ones refer to."""

    sources: dict[Source, TokenIds]
    arrays: dict[str, Array] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _Pending:
    """Rows ready for one transaction."""

    prompts: list[tuple[Any, ...]] = field(default_factory=list)
    probes: list[tuple[Any, ...]] = field(default_factory=list)
    server: list[tuple[Any, ...]] = field(default_factory=list)
    deeds: list[tuple[Any, ...]] = field(default_factory=list)
    decisions: list[tuple[Any, ...]] = field(default_factory=list)
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    alarms: list[StoredAlarm] = field(default_factory=list)
    last_index: int = -1

    @property
    def rows(self) -> int:
        small = len(self.server) + len(self.deeds) + len(self.decisions) + len(self.alarms)
        return len(self.prompts) + len(self.probes) + small


class JournalWriter:
    """Runs from ``start`` to ``close``. ``put`` and the figures may be used by one other thread."""

    def __init__(self, file: JournalFile, ran: Ran, keep: Keep) -> None:
        self._file, self._ran, self._keep = file, ran, keep
        self._pruner = Pruner(file, keep)
        self._queue: deque[tuple[Record, int]] = deque()
        self._put_bytes = self._taken_bytes = 0  # each written by one thread only
        self._wake, self._closing = threading.Event(), threading.Event()
        self._pending = _Pending()
        self._passes: OrderedDict[tuple[bool, int], _Passes] = OrderedDict()
        self._ring: deque[int] = deque()
        self._lost: set[tuple[int, int, int]] = set()
        self._thread = threading.Thread(target=self._run, name="soak-journal", daemon=True)
        self.said: deque[str] = deque()  # words for people, taken by the other thread
        self.fault: BaseException | None = None
        self.failing = ""
        self.written = self.dropped = 0
        self.bytes = self._pruner.used_bytes()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, record: Record, size: int) -> None:
        """Hand over a record of so many bytes; dropped, and counted, when the disk cannot follow."""
        full = len(self._queue) >= _MOST_QUEUED or self._put_bytes - self._taken_bytes > _MOST_QUEUED_BYTES
        if (full or not self._thread.is_alive()) and not isinstance(record, StoredAlarm | Decided):
            self.dropped += 1
            if isinstance(record, Loaded) and len(self._lost) < _MOST_LOST:
                self._lost.add(record.place)
            return
        self._put_bytes += size
        self._queue.append((record, size))
        if isinstance(record, StoredAlarm):
            self._wake.set()

    @property
    def unwritten(self) -> int:
        """Rows that a disk which refuses has not taken by now; 0 while it takes them."""
        return self._pending.rows + len(self._queue) if self.failing else 0

    def close(self) -> None:
        """Write what is there and let go of the file; what a refusing disk does not take is counted."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self.said.append(f"journal: still writing after {_CLOSE_S:.0f} s; left to end by itself")
            return
        self.dropped += self._pending.rows + len(self._queue)
        self._file.close()

    # In the thread

    def _run(self) -> None:
        try:
            while True:
                closing = self._closing.is_set()
                if not closing:
                    self._wake.wait(_GATHER_S)
                    self._wake.clear()
                self._take()
                written = self._attempt(self._commit)
                if closing and (not written or not self._queue):
                    return
                if written and not closing:
                    self._attempt(self._tend)
        except BaseException as error:  # the other thread raises it
            self.fault = error

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Do it, or say once that it cannot be done; it is tried again with the next rows."""
        try:
            work()
        except JournalUnusable as error:
            if str(error) != self.failing:
                self.said.append(
                    f"journal: not written, trying again: {error}. The soak and its verdict go on; what does "
                    "not fit into memory meanwhile is lost to later incidents"
                )
            self.failing = str(error)
            return False
        if self.failing and work == self._commit:
            self.said.append("journal: written again")
            self.failing = ""
        return True

    def _take(self) -> None:
        while self._queue and self._pending.rows < _MOST_ROWS:
            record, size = self._queue.popleft()
            self._taken_bytes += size
            self._convert(record)

    def _convert(self, record: Record) -> None:
        pending, session = self._pending, self._ran.number
        if isinstance(record, Loaded):
            pending.prompts.append(record.row)
            pending.last_index = max(pending.last_index, record.place[0])
        elif isinstance(record, PassSeen):
            pending.prompts.append(self._pass(record))
        elif isinstance(record, ProbeEnded):
            self._ended(record)
        elif isinstance(record, Spoiled):
            facts = probe_facts(record.result) | {
                "victim": [record.seen.item.index, record.seen.item.step, record.seen.part]
            }
            arrays = pack_arrays({"served": record.seen.answer.output_logprobs})
            clock, answer = self._ran.clock, record.seen.answer
            times = (clock.us(answer.sent_s), clock.us(answer.finished_s))
            pending.probes.append(
                probe_row(session, record.number, times, record.result, facts, suspicious=True, arrays=arrays)
            )
        elif isinstance(record, ServerSaid):
            pending.server.append((record.at_us, session, orjson.dumps(record.said).decode()))
        elif isinstance(record, Decided):
            said = orjson.dumps(record.row).decode()
            pending.decisions.append((self._ran.run_id, record.row["first"], session, record.at_us, said))
        elif isinstance(record, Deed):
            pending.deeds.append(deed_row(session, record, self._ran.clock))
        else:
            pending.alarms.append(record)

    def _pass(self, seen: PassSeen) -> tuple[Any, ...]:
        known = self._passes_of(seen)
        place = known.count
        known.count += 1
        row = pass_row(self._ran.number, seen, place, known.sources, self._ran.clock)
        known.sources[("sent", place)] = seen.sent.ids
        answer = seen.sent.answer
        if len(answer.output_ids):
            known.sources[("got", place)] = answer.output_ids
        if seen.sent.what not in ("locate", "companion") and not seen.control:
            if seen.sent.start is not None:
                known.arrays[seen.sent.what] = answer.input_logprobs[1:]
            elif answer.output_logprobs.size:
                known.arrays[seen.sent.what] = answer.output_logprobs
        return row

    def _passes_of(self, seen: PassSeen) -> _Passes:
        key = (seen.control, seen.number)
        if key not in self._passes:
            ran, victim = self._ran, seen.victim
            sources: dict[Source, TokenIds] = {("tail", 0): seen.tail.ids(ran.seed, ran.nonce, ran.geometry)}
            place = (victim.index, victim.step, victim.part)
            kept = self._ran.clock.us(victim.written_s) > self._pruner.front_us + _FRONT_MARGIN_US
            there = victim.index >= 0 and place not in self._lost and len(self._lost) < _MOST_LOST
            if there and (kept or not self._pruner.front_us):
                sources[("victim", 0)] = victim.ids
            self._passes[key] = _Passes(sources)
            while len(self._passes) > _NUMBERS:
                self._passes.popitem(last=False)
        return self._passes[key]

    def _ended(self, record: ProbeEnded) -> None:
        result, clock = record.result, self._ran.clock
        known = self._passes.pop((False, result.number), None) or self._passes.pop(
            (True, result.number), None
        )
        arrays = None if known is None or not known.arrays else pack_arrays(known.arrays)
        times = (clock.us(result.started_s), clock.us(result.started_s + result.seconds))
        self._pending.probes.append(
            probe_row(
                self._ran.number,
                result.number,
                times,
                result,
                probe_facts(result),
                suspicious=record.suspicious,
                arrays=arrays,
            )
        )
        if arrays is not None and not record.suspicious:
            self._ring.append(result.number)
            while len(self._ring) > _RING:
                self._pending.forgotten.append((self._ran.number, self._ring.popleft()))

    def _commit(self) -> None:
        pending, ran = self._pending, self._ran
        if not pending.rows:
            return
        with self._file.transaction() as db:
            insert_prompts(db, pending.prompts)
            db.executemany(INSERT_PROBE, pending.probes)
            db.executemany("INSERT INTO server VALUES (?, ?, ?)", pending.server)
            db.executemany(INSERT_DEED, pending.deeds)
            db.executemany("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?, ?)", pending.decisions)
            db.executemany(
                "UPDATE probes SET arrays = NULL WHERE session = ? AND number = ? AND suspicious = 0",
                pending.forgotten,
            )
            if pending.last_index >= 0:
                db.execute(
                    "INSERT INTO progress VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE "
                    "SET last_index = max(last_index, ?4)",
                    (ran.run_id, ran.shard, ran.shards, pending.last_index),
                )
            for alarm in pending.alarms:
                open_incident(db, alarm, self._keep)
        self.written += pending.rows
        if pending.alarms:
            self._pruner.look_again()
        self._pending = _Pending()

    def _tend(self) -> None:
        """Small steps in the background: finish incidents whose window is over, prune."""
        now_us = self._ran.clock.us(time.monotonic())  # a clock set forward must not age what is new
        with self._file.in_words():
            due = complete_incidents(self._file, now_us)
        if due:
            self._pruner.look_again()
        for words in self._pruner.step(now_us):
            self.said.append(words)
        self.bytes = self._pruner.used_bytes()
