"""The incidents of a report: how far off, token by token, what had happened, and the command that asks again.

Read from the journal. What a journal has let go of is said in words; it never costs the rest of the report.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from soak.export.incident_words import Told, incident_words
from soak.export.telling import replay_command, told_of
from soak.incident.incident import Incident
from soak.incident.journal_file import JournalUnusable
from soak.incident.journal_ids import TraceUnavailable
from soak.incident.journal_reader import JournalReader
from soak.report import plots
from soak.report.markup import Child, Safe, el, table
from soak.report.run_folder import RunOnDisk
from soak.report.sections import section

MOST_SHOWN = 8
_QUESTION = "What was wrong, and how is it asked again?"


def command(words: str) -> Safe:
    """A command to copy; without a script it is selected whole by a click."""
    return el("div", el("code", words), el("button", "Copy", type="button", hidden=True), class_="cmd")


def incidents(run: RunOnDisk) -> Safe:
    """All that the run raised, the first few in full."""
    named = [str(name) for name in run.summary["incidents"]]
    shown: list[Safe] = []
    unread: list[str] = []
    ids: list[str] = []
    for path in run.journals:
        try:
            _read(run, path, named, ids, shown)
        except (JournalUnusable, sqlite3.Error, json.JSONDecodeError, OSError) as error:
            unread.append(f"The journal cannot be read: {error}")
    more = ids[MOST_SHOWN:]
    rest = f"{len(more)} more, which `soak incidents` lists: {', '.join(more[:50])}" if more else ""
    if not ids:
        words = _WITHOUT_JOURNAL if run.summary["detector"]["alarms"] else "Nothing was raised."
        notes = [el("p", note) for note in unread]
        return section("incidents", _QUESTION, el("p", words, class_="answer"), notes, _alarms(run))
    count = f"{len(ids)} incidents." if len(ids) > 1 else "One incident."
    notes = [el("p", note) for note in (rest, *unread) if note]
    return section("incidents", _QUESTION, el("p", count, class_="answer"), shown, notes)


_WITHOUT_JOURNAL = "Alarms were raised, and without the run's journal they can neither be shown nor replayed."


def _read(run: RunOnDisk, path: Path, named: list[str], ids: list[str], shown: list[Safe]) -> None:
    """Add the run's incidents of one journal to ``ids``, and to ``shown`` while there is room."""
    reader = JournalReader(path)
    try:
        there = {incident.id: incident for incident in reader.incidents()}
        since_us = None if run.began_s is None else run.began_s * 1e6
        # after a kill the journal knows what the last saved summary does not
        new = [i.id for i in there.values() if since_us is not None and i.raised_us >= since_us]
        for name in dict.fromkeys([*(name for name in named if name in there), *new]):
            if name not in ids:
                ids.append(name)
                if len(ids) <= MOST_SHOWN:
                    shown.append(_incident(reader, there[name]))
    finally:
        reader.close()


def _alarms(run: RunOnDisk) -> Safe | None:
    rows = [
        (a["verdict"], a["channel"], a["stream"] or a["shape"], a["evidence"])
        for a in run.summary["detector"]["alarms"]
    ]
    return table(("verdict", "channel", "stream", "evidence"), rows) if rows else None


def _incident(reader: JournalReader, incident: Incident) -> Safe:
    alarm = incident.alarm
    title = f"{incident.id}: {alarm.verdict.value} by {alarm.channel} on {alarm.stream or alarm.shape}"
    head: list[Child] = [el("h3", title), el("p", f"{alarm.evidence}.", class_="answer")]
    head.append(el("p", f"Raised {incident.raised_at}. {_note(incident)}", class_="note"))
    try:
        told = told_of(reader, incident)
    except (TraceUnavailable, JournalUnusable) as error:
        return el("article", head, el("p", str(error)), class_="incident")
    return el(
        "article",
        head,
        _plot(incident, told),
        el("p", "Ask the server again:"),
        command(replay_command(reader, incident)),
        el("p", "Make a folder of it to hand on, or to file upstream:"),
        command(f"soak incidents export {incident.id} incident-{incident.id} --journal {reader.path}"),
        el("details", el("summary", "What had happened, in words"), el("pre", incident_words(told))),
        class_="incident",
    )


def _note(incident: Incident) -> str:
    return incident.note[:1].upper() + incident.note[1:] + "." if incident.note else ""


def _plot(incident: Incident, told: Told) -> Safe | None:
    case = told.trace.case
    off: dict[str, npt.NDArray[np.float64]] = {}
    for name, scored in (("warm", case.warm), ("control", case.control), ("cold again", case.cold_again)):
        if scored is not None and len(scored) == len(case.cold) and len(scored):
            off[name] = scored - case.cold
    if "warm" not in off:
        return None
    return plots.tokens(f"incident-{incident.id}", off)


def facts(told: dict[str, Any]) -> Safe:
    """Names and values of a mapping, nested ones as one dotted name."""
    rows = [(name, value) for name, value in flat(told)]
    return table(("name", "value"), rows)


def flat(values: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    """A nested mapping as dotted names and their values in words."""
    found = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found += flat(value, f"{path}{name}.")
        else:
            found.append((f"{path}{name}", "-" if value is None else str(value)))
    return found
