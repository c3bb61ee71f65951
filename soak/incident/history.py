"""The history of a trace's victim: who wrote the prefix, who touched it, what ran beside. Pure.

From outside one sees requests, not batches: what was under way together may have shared a batch, no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.incident.journal_recipe import agreement
from soak.incident.trace import Origin, Trace

_TOUCH = 16  # leading tokens in common, from which on a prompt can have to do with the same cache entries


@dataclass(frozen=True, slots=True)
class Touch:
    """A prompt of the same namespace that begins as the question does. shared: how many leading tokens."""

    place: int
    shared: int


@dataclass(frozen=True, slots=True)
class History:
    """Positions in the trace. writer: None where the trace has none, and then nothing ran beside it.

    beside_writer, beside_probe: prompts under way together with the writing of the prefix, and with the warm
    pass. touched: between the two, in order of sending. aborted, retracted, from_host: prompts of the whole
    trace that the run took back, that the server retracted, whose prefix came back from the host.
    """

    writer: int | None
    beside_writer: tuple[int, ...]
    beside_probe: tuple[int, ...]
    touched: tuple[Touch, ...]
    aborted: tuple[int, ...]
    retracted: tuple[int, ...]
    from_host: tuple[int, ...]


def history_of(trace: Trace) -> History:
    """What the trace says of its victim."""
    case, writer = trace.case, trace.case.victim
    own = {
        place
        for place, sent in enumerate(trace.sent)
        if sent.origin is Origin.PROBE and sent.index == case.number
    }
    asked_us = case.at_us or max((sent.sent_us for sent in trace.sent), default=0)
    warm_end_us = max((trace.seen[place].finished_us for place in own), default=asked_us)
    prefix = case.ids[: case.start]
    written_us = trace.seen[writer].finished_us if writer is not None else 0
    touched = []
    for place, sent in enumerate(trace.sent):
        after = written_us <= sent.sent_us <= asked_us and place not in own
        if after and place != writer and sent.namespace == case.namespace:
            shared = agreement(sent.ids, prefix)
            if shared >= min(_TOUCH, len(prefix)) and shared:
                touched.append(Touch(place, shared))
    beside_writer: tuple[int, ...] = ()
    if writer is not None:
        beside_writer = _under_way(trace, trace.sent[writer].sent_us, written_us, own | {writer})
    return History(
        writer=writer,
        beside_writer=beside_writer,
        beside_probe=_under_way(trace, asked_us, warm_end_us, own),
        touched=tuple(touched),
        aborted=tuple(place for place, sent in enumerate(trace.sent) if sent.abort_us is not None),
        retracted=tuple(place for place, seen in enumerate(trace.seen) if seen.num_retractions),
        from_host=tuple(place for place, seen in enumerate(trace.seen) if seen.cached_host_tokens),
    )


def _under_way(trace: Trace, low_us: int, high_us: int, without: set[int]) -> tuple[int, ...]:
    return tuple(
        place
        for place, (sent, seen) in enumerate(zip(trace.sent, trace.seen, strict=True))
        if place not in without and sent.sent_us < high_us and seen.finished_us > low_us
    )
