"""An alarm as it is kept, and what a person said about it. Plain data: it reads no file and no clock.

Times are seconds since 1970.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from soak.detect.verdict import Alarm
from soak.runners.faults import check_names

NOT_ACKED = "no"

_LONGEST_BY = 100


class AckKind(enum.StrEnum):
    """What a person decided."""

    ACK = "ack"  # seen and done with: the stream's evidence starts afresh
    KNOWN = "known"  # a known fault: no page for this stream and fingerprint
    UNTIL = "until"  # no page for this stream and fingerprint until a time


@dataclass(frozen=True, slots=True)
class Ack:
    """One acknowledgement. fault: a name of the known-fault table, for KNOWN; until_s: for UNTIL."""

    kind: AckKind
    at_s: float
    fault: str = ""
    until_s: float | None = None
    by: str = ""

    def mutes(self, now_s: float) -> bool:
        """Whether it keeps a page from being sent at that time."""
        if self.kind is AckKind.UNTIL:
            return self.until_s is not None and now_s < self.until_s
        return self.kind is AckKind.KNOWN

    def words(self) -> str:
        """What was decided, as part of a sentence."""
        by = f" by {self.by}" if self.by else ""
        if self.kind is AckKind.KNOWN:
            return f"muted as the known fault {self.fault}{by}"
        if self.kind is AckKind.UNTIL:
            return f"muted until {utc(self.until_s)}{by}"
        return f"acknowledged{by}"


def ack_of(
    *, now_s: float, known: str | None = None, until_s: float | None = None, by: str | None = None
) -> Ack:
    """An acknowledgement from what a person gave. Raises ValueError, in words, for what makes no sense."""
    who = " ".join((by or "").split())
    if len(who) > _LONGEST_BY or not who.isprintable():
        raise ValueError(f"by: a name of at most {_LONGEST_BY} printable characters is wanted")
    if known is not None and until_s is not None:
        raise ValueError("known and until: give one of them")
    if known is not None:
        check_names([known])
        return Ack(AckKind.KNOWN, now_s, fault=known, by=who)
    if until_s is not None:
        if not now_s < until_s < float("inf"):
            raise ValueError(f"until: {utc(until_s)} is past; give a time to come")
        return Ack(AckKind.UNTIL, now_s, until_s=until_s, by=who)
    return Ack(AckKind.ACK, now_s, by=who)


@dataclass(frozen=True, slots=True)
class StoredAlarm:
    """An alarm under its id, raised on the server with that fingerprint digest.

    applied: an acknowledgement has reached the evidence. Nothing is to be done for one that mutes.
    """

    id: str
    fingerprint: str
    raised_s: float
    alarm: Alarm
    ack: Ack | None = None
    applied: bool = False

    @property
    def stands(self) -> bool:
        """Whether it still counts for the verdict; a muted alarm does."""
        return self.ack is None or self.ack.kind is not AckKind.ACK

    def said(self) -> str:
        """What a person said of it, in words; empty if nothing."""
        return "" if self.ack is None else f"{self.ack.words()} at {utc(self.ack.at_s)}"

    def as_dict(self, in_force: Ack | None) -> dict[str, Any]:
        """Plain values for JSON, times in ISO 8601; ``in_force`` as ``decisions`` gives it."""
        ack, alarm = in_force, self.alarm
        return {
            "id": self.id,
            "verdict": alarm.verdict.value,
            "channel": alarm.channel,
            "stream": alarm.stream,
            "shape": alarm.shape,
            "evidence": alarm.evidence,
            "probes": list(alarm.probes),
            "fingerprint": self.fingerprint,
            "raised_at": utc(self.raised_s),
            "acked": NOT_ACKED if ack is None else ack.kind.value,
            "acked_at": None if ack is None else utc(ack.at_s),
            "known_fault": ack.fault or None if ack is not None else None,
            "until": None if ack is None or ack.until_s is None else utc(ack.until_s),
            "by": ack.by or None if ack is not None else None,
        }


def decisions(alarms: Iterable[StoredAlarm], now_s: float) -> dict[str, Ack | None]:
    """What is in force for each alarm, by id: its own acknowledgement, or the mute of its stream, or None.

    A decision that mutes holds for all alarms of its stream on its server, those before and those to come. It
    ends with its time, or when its alarm is acknowledged for good.
    """
    held = list(alarms)
    mutes = {
        (stored.fingerprint, stored.alarm.stream): stored.ack
        for stored in held
        if stored.ack is not None and stored.ack.mutes(now_s)
    }
    return {
        stored.id: mutes.get((stored.fingerprint, stored.alarm.stream)) if stored.stands else stored.ack
        for stored in held
    }


def utc(moment_s: float | None) -> str:
    """A time as ISO 8601 in UTC, to the second; ``never`` for none or one that no calendar has."""
    if moment_s is None:
        return "never"
    try:
        return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "never"
