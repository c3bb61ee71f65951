"""When each request of a trace is sent again: after what, and how long after. Pure, no clock.

At the recorded speed a request keeps its distance from the start of the trace. At full speed only idle time
goes: whatever had finished before a request was sent must have finished again, requests are sent in the same
order, and what was sent beside others still is.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from soak.incident.trace import Origin, Sent, Trace

KEPT_GAP_US = 20_000
"""At full speed, how much of the distance to the event before is kept where others are in flight: enough that
a request which came in the middle of them does not fall into their first step."""


class Speed(enum.StrEnum):
    """At the recorded distances, or without idle time."""

    RECORDED = "1"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace. places: the positions in the trace of the prompts that travel in it.

    parents: requests (by position in the order) whose answers it goes on from. finished_before: of all
    requests by their recorded end, how many must have ended first. at_us: recorded start. gap_us: at full
    speed, how long after the last of them, and after the request before it was sent. after_parent_us: the
    recorded distance to the end of the last parent.
    """

    places: tuple[int, ...]
    parents: tuple[int, ...]
    finished_before: int
    at_us: int
    gap_us: int
    after_parent_us: int


@dataclass(frozen=True, slots=True)
class Order:
    """requests: in order of sending. ends: requests in order of their recorded ends.

    probe_after: how many requests were sent before the case was asked; probe_ends: how many had ended then.
    """

    requests: tuple[Request, ...]
    ends: tuple[int, ...]
    probe_after: int
    probe_ends: int


def own_passes(trace: Trace) -> frozenset[int]:
    """Positions of the case's own passes: a replay asks the question itself."""
    return frozenset(
        place
        for place, sent in enumerate(trace.sent)
        if sent.origin is Origin.PROBE and sent.index == trace.case.number
    )


def order_of(trace: Trace) -> Order:
    """The requests of a trace and what each waits for. Raises ValueError for a trace that contradicts itself.

    The case's own passes are left out.
    """
    left_out = own_passes(trace)
    grouped: dict[int, list[int]] = {}
    for place, sent in enumerate(trace.sent):
        if place not in left_out:
            grouped.setdefault(sent.request, []).append(place)
    groups = sorted(grouped.values(), key=lambda places: (trace.sent[places[0]].sent_us, places[0]))
    request_of = {place: number for number, places in enumerate(groups) for place in places}
    for places in groups:
        _check_one_request([trace.sent[place] for place in places])
    starts = [trace.sent[places[0]].sent_us for places in groups]
    # what never ended has no end of its own: it then counts as over where it began
    finishes = [
        max(start, *(trace.seen[place].finished_us for place in places))
        for start, places in zip(starts, groups, strict=True)
    ]
    ends = sorted(range(len(groups)), key=lambda number: (finishes[number], number))
    finish_times = [finishes[number] for number in ends]
    requests = []
    for number, places in enumerate(groups):
        parents = sorted({p for place in places for p in _parents(trace, place, request_of)})
        if any(parent >= number for parent in parents):
            raise ValueError(f"prompt {places[0]} of the trace was sent before its parent")
        before = bisect_left(finish_times, starts[number])  # strictly: so never itself, nor a later one
        last_event = max(starts[number - 1] if number else 0, finish_times[before - 1] if before else 0)
        beside_others = before < number
        gap = min(KEPT_GAP_US, max(0, starts[number] - last_event)) if beside_others else 0
        after_parent = starts[number] - max((finishes[p] for p in parents), default=0)
        requests.append(
            Request(tuple(places), tuple(parents), before, starts[number], gap, max(0, after_parent))
        )
    at = trace.case.at_us
    if not at:
        return Order(tuple(requests), tuple(ends), len(requests), len(requests))
    return Order(tuple(requests), tuple(ends), bisect_right(starts, at), bisect_right(finish_times, at))


def _parents(trace: Trace, place: int, request_of: dict[int, int]) -> list[int]:
    parent = trace.sent[place].parent
    if parent is None:
        return []
    if parent not in request_of:
        raise ValueError(f"prompt {place} of the trace goes on from {parent}, which is no prompt before it")
    return [request_of[parent]]


def _check_one_request(prompts: list[Sent]) -> None:
    """Prompts that travelled together had everything in common but their ids."""
    for name in (
        "max_new_tokens", "temperature_milli", "stream", "return_logprob", "logprob_start_len", "namespace",
        "adapter", "code",
    ):  # fmt: skip
        if len({getattr(sent, name) for sent in prompts}) > 1:
            raise ValueError(f"request {prompts[0].request} of the trace: its prompts differ in {name}")
