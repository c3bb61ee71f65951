"""What a run marks in Grafana: an alarm when it is raised, and what a person says of it. Words and tags."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from soak.config.grafana import Grafana
from soak.drive.deed import IN_FORCE, Deed
from soak.export.annotations import Annotation, GrafanaAnnotations
from soak.run.alarm_desk import AlarmDesk
from soak.run.record import Record
from soak.store.alarms import StoredAlarm

TAG = "soak"
"""Dashboards ask for it."""

_LONGEST = 600  # characters of evidence: an annotation is a mark, not a report


def raised(stored: StoredAlarm) -> Annotation:
    """An alarm that stands from now on."""
    alarm = stored.alarm
    text = (
        f"{alarm.verdict.value} by {alarm.channel} on {alarm.stream}: {alarm.evidence[:_LONGEST]} "
        f"(alarm {stored.id}, server {stored.fingerprint})"
    )
    return Annotation(stored.raised_s, text, (TAG, "alarm", alarm.verdict.value.lower(), alarm.channel))


def acknowledged(stored: StoredAlarm) -> Annotation:
    """A person's decision on an alarm."""
    alarm, ack = stored.alarm, stored.ack
    at_s, words = (stored.raised_s, "") if ack is None else (ack.at_s, ack.words())
    return Annotation(
        at_s, f"alarm {stored.id} on {alarm.stream}: {words}", (TAG, "ack", alarm.verdict.value.lower())
    )


def acted(deed: Deed) -> Annotation:
    """An action of an experiment, when it begins and when it is over."""
    at_s = deed.began_s if deed.ended_s is None else deed.ended_s
    said = "begins" if deed.outcome == IN_FORCE else f"{deed.outcome}: {deed.detail[:_LONGEST]}".rstrip(": ")
    return Annotation(
        time.time() - (time.monotonic() - at_s),
        f"action {deed.number}, {deed.name} on {deed.target}: {said}",
        (TAG, "chaos", deed.name),
    )


@contextlib.asynccontextmanager
async def annotated(config: Grafana, desk: AlarmDesk, record: Record) -> AsyncIterator[None]:
    """While inside, alarms and acknowledgements are marked in the Grafana that the config names, if any.

    Raises ConfigError for a Grafana without a token. Leaving takes 2 s at most.
    """
    token, url = config.token(), config.url
    if url is None or token is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def say(words: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over and nobody reads
            loop.call_soon_threadsafe(record.say, words)

    marks = GrafanaAnnotations(
        url, token, dashboard=config.dashboard, say=say, count=record.metrics.count_annotation
    )
    desk.on_alarm = lambda stored: marks.put(raised(stored))
    record.mark_deed = lambda deed: marks.put(acted(deed))
    desk.on_ack = lambda stored: marks.put(acknowledged(stored))
    try:
        yield
    finally:
        given_up = await asyncio.to_thread(marks.close)
        if given_up:
            record.say(f"grafana.url: {url}: {given_up} annotations could not be sent")
