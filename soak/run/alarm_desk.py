"""Between the detectors, the state file and the people who acknowledge alarms. It never judges a probe.

Evidence is written every few seconds, an alarm at once: it is on the disk before it is said. Writes are made
by one thread, in the order in which they were asked for, so that an older state never lands on a newer one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from soak.config import ConfigError
from soak.detect.detector import STATE_VERSION, Detector
from soak.detect.verdict import Alarm
from soak.store.alarms import Ack, StoredAlarm, decisions, utc
from soak.store.database import StateUnusable, Store

SAVE_EVERY_S = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Writing:
    """A save on its way: its outcome, the alarms and acknowledgements in it, when it was asked for."""

    future: Future[StateUnusable | None]
    raised: Collection[str]
    applied: set[str]
    at_s: float


class AlarmDesk:
    """The alarms of one server, by its fingerprint digest, and the detector's way to the store and back.

    Used from the event loop's thread only. ``start`` before anything else.
    """

    def __init__(
        self,
        store: Store,
        fingerprint: str,
        detector: Detector,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._fingerprint, self._detector = store, fingerprint, detector
        self._say, self._clock = say, clock
        self._alarms: dict[str, StoredAlarm] = {}
        self._unwritten: dict[str, StoredAlarm] = {}
        self._unapplied: set[str] = set()  # acknowledged in memory, and the store does not know it yet
        self._writer = ThreadPoolExecutor(1, "soak-state")
        self._failing = ""
        self.probes = 0
        self.saved_s = 0.0
        self.on_alarm: Callable[[StoredAlarm], None] = lambda _stored: None  # told of each one raised
        self.on_ack: Callable[[StoredAlarm], None] = lambda _stored: None  # told of each decision on one

    def start(self) -> None:
        """Take up what an earlier run of the same server left. Raises ConfigError for what does not fit."""
        saved = self._store.load(self._fingerprint, STATE_VERSION)
        if saved is not None:
            try:
                self._detector.restore(saved.state)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError(
                    f"run.state: the evidence in it does not fit this soak ({error!r}); it was left as it "
                    "is. Move the file away to calibrate afresh"
                ) from error
            self.probes = saved.probes
        elif self._store.other_versions(self._fingerprint, STATE_VERSION):
            self._say("the state file has evidence of another version of the detectors: calibrating afresh")
        self._take_in(self._store.alarms(self._fingerprint))
        for stored in self.standing():
            self._detector.reinstate(stored.alarm)
        kept = {stored.alarm for stored in self.standing()}
        for alarm in self._detector.alarms:
            if alarm not in kept:
                self._adopt(alarm)
        self._tell()

    def _tell(self) -> None:
        for stored, ack in self._decided():
            alarm = stored.alarm
            what = f"{alarm.verdict.value} by {alarm.channel} on {alarm.stream}"
            if ack is None:
                self._say(f"still alarmed: {what} since {utc(stored.raised_s)}, until `soak ack {stored.id}`")
            else:
                self._say(f"{what} since {utc(stored.raised_s)}, {ack.words()}")

    def _decided(self) -> list[tuple[StoredAlarm, Ack | None]]:
        """Standing alarms, each with the mute in force for it."""
        in_force = decisions(self._alarms.values(), self._clock())
        return [(stored, in_force[stored.id]) for stored in self.standing()]

    def _adopt(self, alarm: Alarm) -> StoredAlarm:
        """Give an alarm an id."""
        stored = StoredAlarm(secrets.token_hex(4), self._fingerprint, self._clock(), alarm)
        self._alarms[stored.id] = self._unwritten[stored.id] = stored
        return stored

    # What the run asks

    def raised(self, alarm: Alarm) -> StoredAlarm:
        """An alarm that the detectors just made: under an id, and on the disk when this returns."""
        stored = self._adopt(alarm)
        self._settle(self._write())
        self.on_alarm(stored)
        return stored

    def standing(self) -> list[StoredAlarm]:
        """Alarms that count for the verdict, muted ones among them, oldest first."""
        return [stored for stored in self._alarms.values() if stored.stands]

    def muted(self) -> dict[Alarm, str]:
        """Standing alarms that send no page: ``known`` or ``until``."""
        return {stored.alarm: ack.kind.value for stored, ack in self._decided() if ack is not None}

    def facts(self) -> dict[Alarm, dict[str, Any]]:
        """What a summary adds to each standing alarm: id, times, what was said of it."""
        return {stored.alarm: stored.as_dict(ack) for stored, ack in self._decided()}

    def notes(self) -> list[str]:
        """Sentences about muted alarms, for the reasons of a verdict."""
        return [
            f"alarm {stored.id} on {stored.alarm.stream} is {ack.words()}: no page, and it still counts"
            for stored, ack in self._decided()
            if ack is not None
        ]

    async def keep(self) -> None:
        """Save every few seconds, and take up what was acknowledged in the file. Runs until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    async def save(self) -> None:
        """Take up acknowledgements from the file and write evidence; a failure is said and tried again."""
        try:
            self._take_in(self._store_call(lambda: self._store.alarms(self._fingerprint)))
        except StateUnusable as error:
            self._failed(error)
            return
        writing = self._write()
        await asyncio.shield(asyncio.wrap_future(writing.future))
        self._settle(writing)

    def close(self) -> None:
        """Write all there is, and let go of the file."""
        self._settle(self._write())
        self._writer.shutdown()
        self._store.close()

    # What people ask

    def listing(self) -> list[dict[str, Any]]:
        """Alarms of every server in the file as plain values, oldest first. Raises StateUnusable."""
        every = self._store_call(self._store.alarms)
        in_force = decisions(every, self._clock())
        return [stored.as_dict(in_force[stored.id]) for stored in every]

    def acknowledge(self, name: str, ack: Ack) -> StoredAlarm:
        """Write a decision down and act on it. Raises UnknownAlarm, StateUnusable."""
        if name in self._unwritten:
            self._settle(self._write())
        stored = self._store_call(lambda: self._store.acknowledge(name, ack))
        if stored.fingerprint == self._fingerprint:
            self._take_in([stored])
            self._settle(self._write())
        self._say(f"alarm {name} on {stored.alarm.stream}: {ack.words()}")
        return stored

    def _take_in(self, rows: list[StoredAlarm]) -> None:
        """Alarms as the store has them; an acknowledgement starts the stream's evidence afresh, once."""
        for stored in rows:
            if stored.id in self._unapplied:
                continue
            if not stored.stands and not stored.applied:
                if stored.alarm in self._detector.alarms:
                    self._detector.acknowledge(stored.alarm)
                self._unapplied.add(stored.id)
            before = self._alarms.get(stored.id)
            self._alarms[stored.id] = stored
            if before is not None and stored.ack is not None and stored.ack != before.ack:
                self.on_ack(stored)

    # Writing

    def _write(self) -> _Writing:
        state = orjson.dumps(self._detector.state())
        raised, applied, now = dict(self._unwritten), set(self._unapplied), self._clock()
        probes = self.probes

        def write() -> StateUnusable | None:
            try:
                self._store.save(
                    self._fingerprint,
                    STATE_VERSION,
                    state,
                    probes=probes,
                    now_s=now,
                    raised=raised.values(),
                    applied=applied,
                )
            except StateUnusable as error:
                return error
            return None

        return _Writing(self._writer.submit(write), raised.keys(), applied, now)

    def _settle(self, writing: _Writing) -> None:
        error = writing.future.result()
        if error is not None:
            self._failed(error)
            return
        if self._failing:
            self._say("run.state: saved again")
        self._failing = ""
        self.saved_s = max(self.saved_s, writing.at_s)
        for name in writing.raised:
            self._unwritten.pop(name, None)
        for name in writing.applied & self._unapplied:
            self._unapplied.discard(name)
            self._alarms[name] = replace(self._alarms[name], applied=True)

    def _failed(self, error: StateUnusable) -> None:
        if str(error) != self._failing:
            self._say(f"run.state: not saved, trying again: {error}")
        self._failing = str(error)

    def _store_call(self, call: Callable[[], T]) -> T:
        return self._writer.submit(call).result()
