"""A server that went and did not come back: what was under way when it went, as an incident.

It is no alarm: nothing was judged, it pages nobody and stands in no verdict. What it holds is the time around
the moment, so that the requests that a server died of are not pruned with the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from soak.detect.verdict import Alarm, Verdict
from soak.incident.incident import Incident
from soak.incident.journal_reader import PromptRow
from soak.sglang.exchange import Outcome
from soak.store.alarms import StoredAlarm

CHANNEL = "target-lost"
_LOST = (Outcome.DISCONNECTED.value, Outcome.TIMED_OUT.value, Outcome.SERVER_ERROR.value)


def gone(fingerprint: str, gone_s: float, words: str) -> StoredAlarm:
    """What ``Journal.alarm`` takes for it. gone_s: when nothing answered any more, seconds since 1970."""
    said = Alarm(Verdict.SUSPECT, CHANNEL, "", "the server", words, ())
    return StoredAlarm(secrets.token_hex(4), fingerprint, gone_s, said)


def is_one(incident: Incident) -> bool:
    """Whether an incident is of a server that went."""
    return incident.alarm.channel == CHANNEL


def under_way(incident: Incident, rows: Iterable[PromptRow]) -> Sequence[PromptRow]:
    """Prompts that had no answer when it went, the latest sent first."""
    lost = [row for row in rows if row.outcome in _LOST and row.sent_us <= incident.raised_us + 1_000_000]
    return sorted(lost, key=lambda row: (row.sent_us, row.seq), reverse=True)
