"""All that is told of one incident, read from its journal. Reads; the words are made elsewhere."""

from __future__ import annotations

import shlex

from soak.export.incident_words import Told
from soak.incident.candidates import candidates
from soak.incident.history import history_of
from soak.incident.incident import Incident
from soak.incident.journal_reader import JournalReader
from soak.incident.rebuild import read_incident

_AROUND_US = 30_000_000  # of the server's words, how long before and after the alarm


def replay_command(reader: JournalReader, incident: Incident) -> str:
    """What asks the server again."""
    words = ["soak", "replay", "--incident", incident.id, "--journal", str(reader.path)]
    if incident.session is not None and (target := reader.session(incident.session).target):
        words += ["--target", target]
    return shlex.join(words)


def told_of(reader: JournalReader, incident: Incident, said: str = "") -> Told:
    """``said``: what a person said of it. Raises TraceUnavailable, JournalUnusable."""
    trace, about = read_incident(reader, incident.id)
    history = history_of(trace)
    return Told(
        incident,
        trace,
        about,
        history,
        candidates(trace, history, about),
        server=reader.server_said(incident.raised_us - _AROUND_US, incident.raised_us + _AROUND_US),
        said=said,
        replay_command=replay_command(reader, incident),
    )
