"""The journal as a run has it: told of everything that is sent, and of every alarm. It never waits.

Used from the event loop's thread only. A journal that cannot keep up or cannot write says so and counts what
it lost; a fault of its own ends the run, as any other fault of soak does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from soak.drive.deed import DONE, LOAD, PAUSE, Deed
from soak.drive.observation import Observation
from soak.incident.journal_file import JournalFile, decisions_in
from soak.incident.journal_pruning import Keep
from soak.incident.journal_rows import Clock, load_row
from soak.incident.journal_writer import Decided, JournalWriter, Loaded, ProbeEnded, Ran, ServerSaid, Spoiled
from soak.oracle.probe import ProbeResult
from soak.oracle.prober import PassSeen
from soak.plan.adaptive import Decision
from soak.plan.spec import PLAN_VERSION, ResolvedSpec
from soak.sglang.server_metrics import ServerMetrics
from soak.store.alarms import StoredAlarm

_SERVER_EVERY_S = 5.0
_ROW_BYTES = 1024  # of a prompt that waits to be written, beside its output


@dataclass(frozen=True, slots=True)
class Writes:
    """Who writes: the run, its plan and its server. fields, config: plain values without secrets."""

    run_id: str
    seed: int
    nonce: int
    spec: ResolvedSpec
    fingerprint: str
    soak_version: str
    target: str = ""
    shard: int = 0
    shards: int = 1
    fields: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None


class Journal:
    """Open from its making until ``close``; the run calls ``tick`` every second or so.

    decided: rows of the decisions that earlier processes of the run have taken. Raises JournalUnusable for a
    file that is not a journal, is damaged, newer, or in use.
    """

    def __init__(
        self,
        path: Path,
        writes: Writes,
        say: Callable[[str], None],
        keep: Keep = Keep(),  # noqa: B008 - frozen
    ) -> None:
        self._say = say
        self._file = JournalFile(path, writing=True)
        self.path = self._file.path
        # once: a clock that is set meanwhile must not tear what happened together apart
        clock = Clock(time.time_ns() // 1000 - round(time.monotonic() * 1e6))
        try:
            self.decided = decisions_in(self._file, writes.run_id)
            ran = self._begin(writes, clock)
            self._writer = JournalWriter(self._file, ran, keep)
        except BaseException:
            self._file.close()
            raise
        self._clock, self._number = clock, ran.number
        self._spoiled = 0
        self._paused = 0
        self._server_s = 0.0
        self._closed = False
        self._writer.start()

    def _begin(self, writes: Writes, clock: Clock) -> Ran:
        with self._file.transaction() as db:
            number = db.execute(
                "INSERT INTO sessions (run_id, seed, nonce, shard, shards, plan_version, spec_digest, spec, "
                "fingerprint, fields, config, target, soak_version, started_us) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    writes.run_id,
                    writes.seed,
                    writes.nonce,
                    writes.shard,
                    writes.shards,
                    PLAN_VERSION,
                    writes.spec.digest(),
                    orjson.dumps(writes.spec.as_dict()).decode(),
                    writes.fingerprint,
                    orjson.dumps(dict(writes.fields or {})).decode(),
                    orjson.dumps(dict(writes.config or {})).decode(),
                    writes.target,
                    writes.soak_version,
                    clock.us(time.monotonic()),
                ),
            ).lastrowid
        assert number is not None  # noqa: S101 - for the type checker: an INSERT has a row id
        return Ran(
            number=number,
            run_id=writes.run_id,
            shard=writes.shard,
            shards=writes.shards,
            seed=writes.seed,
            nonce=writes.nonce,
            geometry=writes.spec.geometry,
            clock=clock,
        )

    # What is told

    def observe_load(self, seen: Observation) -> None:
        """One answered load prompt."""
        row = load_row(self._number, seen, self._clock)
        self._writer.put(
            Loaded(row, (seen.item.index, seen.item.step, seen.part)),
            _ROW_BYTES + seen.answer.output_ids.nbytes,
        )

    def observe_pass(self, seen: PassSeen) -> None:
        """One pass of a probe or a control. Before its probe's result."""
        self._writer.put(seen, seen.sent.ids.nbytes)

    def observe_probe(self, result: ProbeResult) -> None:
        """One probe's result. Before any alarm that it raises."""
        looked_bad = result.confirmation is not None or "confirming" in result.detail
        self._writer.put(ProbeEnded(result, looked_bad or result.outcome.hard_alarm), 4096)

    def spoiled(self, seen: Observation, result: ProbeResult) -> None:
        """A load prompt whose answer is an alarm by itself. Before that alarm."""
        self._spoiled += 1
        self._writer.put(Spoiled(-self._spoiled, seen, result), 4096)

    def server_said(self, metrics: ServerMetrics | None) -> None:
        """The latest scrape; kept every few seconds."""
        now = time.monotonic()
        if metrics is None or now - self._server_s < _SERVER_EVERY_S:
            return
        self._server_s = now
        said = {name: value for name, value in asdict(metrics).items() if value not in (None, {})}
        self._writer.put(ServerSaid(self._clock.us(now), said), 1024)

    def decision(self, taken: Decision) -> None:
        """A decision of an adaptive run, before anything planned by it is told."""
        self._writer.put(Decided(self._clock.us(time.monotonic()), taken.as_row()), 512)

    def deed(self, deed: Deed) -> None:
        """An action of an experiment, when it begins and once more when it is over."""
        self._writer.put(deed, 1024)

    def paused(self, mode: str, began_s: float, ended_s: float) -> None:
        """A pause that load itself wanted is over: an action like an experiment's, by a number below 0."""
        self._paused += 1
        settings: dict[str, int | str] = {"mode": mode, "held_ms": max(1, round((ended_s - began_s) * 1000))}
        self.deed(Deed(-self._paused, PAUSE, LOAD, began_s, ended_s, settings, DONE))

    def alarm(self, stored: StoredAlarm) -> None:
        """An alarm under its id becomes an incident; one that is an incident already stays as it is."""
        self._writer.put(stored, 0)

    def recover(self, standing: Iterable[StoredAlarm]) -> None:
        """Alarms of earlier runs: those whose incident did not reach the disk get it now."""
        for stored in standing:
            self.alarm(stored)

    def tick(self) -> None:
        """Say what is to be said. Raises what went wrong inside."""
        self._tell()
        if self._writer.fault is not None:
            raise RuntimeError("the journal's thread failed") from self._writer.fault

    def _tell(self) -> None:
        while self._writer.said:
            self._say(self._writer.said.popleft())

    # What is asked

    @property
    def written(self) -> int:
        """Rows on the disk."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Rows lost because the disk could not follow."""
        return self._writer.dropped

    @property
    def bytes(self) -> int:
        """Bytes in use inside the file."""
        return self._writer.bytes

    def facts(self) -> dict[str, Any]:
        """What a summary says of it."""
        return {
            "path": str(self.path),
            "rows": self.written,
            "dropped": self.dropped + self._writer.unwritten,
            "bytes": self.bytes,
            "failing": self._writer.failing,
        }

    def close(self) -> None:
        """Write what is left and let go of the file."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        self._tell()
