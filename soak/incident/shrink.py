"""Which smaller traces to try, in which order. Pure: yields traces, is told which of them still do it.

The victim of the case stays: without it the question is another one. Cheap and large steps first: a window
around the victim and before the question, then prompts one by one, then what is left of each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from soak.incident import cuts
from soak.incident.ddmin import fewer, growing, least
from soak.incident.order import Order, order_of
from soak.incident.trace import Trace

T = TypeVar("T")

Trials = Generator[Trace, bool, Trace]

_SHORTEST_TAIL = 8  # tokens after K; fewer say too little to stand clear of noise
_UNIT = 64  # places where states are kept are multiples of this on most servers


def size(trace: Trace) -> tuple[int, int, int, int]:
    """What shrinks: prompts, tokens in all, prompts at once, aborts and actions, tokens of the question."""
    tokens = sum(len(s.ids) + s.max_new_tokens for s in trace.sent)
    order = order_of(trace)
    beside = sum(number - r.finished_before for number, r in enumerate(order.requests))
    aborts = sum(s.abort_us is not None for s in trace.sent)
    besides = beside + aborts + len(trace.acted) + (trace.case.at_us > 0)
    return len(trace.sent), tokens, besides, len(trace.case.ids)


def shrink(trace: Trace) -> Trials:
    """The smallest trace that was found to do it; ``trace`` itself is taken to do it."""
    trace = yield from _actions(trace)
    trace = yield from _window(trace)
    while True:
        before = size(trace)
        for step in (_actions, _requests, _prompts, _alone, _aborts, _outputs, _lengths, _question):
            trace = yield from step(trace)
        if size(trace) == before:
            return trace


def _tried(
    trials: Generator[tuple[T, ...], bool, tuple[T, ...]], made: Callable[[tuple[T, ...]], Trace]
) -> Generator[Trace, bool, tuple[T, ...]]:
    """The trials of an abstract search, as traces."""
    try:
        candidate = next(trials)
        while True:
            candidate = trials.send((yield made(candidate)))
    except StopIteration as done:
        found: tuple[T, ...] = done.value
        return found


def _window(trace: Trace) -> Trials:
    order = order_of(trace)
    victim = trace.case.victim
    of_victim = next((n for n, r in enumerate(order.requests) if victim in r.places), len(order.requests))
    numbers = tuple(range(len(order.requests)))
    made = partial(_of_requests, trace, order, ())
    kept = yield from _tried(growing(numbers, (of_victim, of_victim + 1, order.probe_after)), made)
    return made(kept) if len(kept) < len(numbers) else trace


def _of_requests(trace: Trace, order: Order, fixed: tuple[int, ...], numbers: tuple[int, ...]) -> Trace:
    places = {place for number in (*fixed, *numbers) for place in order.requests[number].places}
    if trace.case.victim is not None:
        places.add(trace.case.victim)
    return cuts.keep(trace, places)


def _requests(trace: Trace) -> Trials:
    """Fewer requests; of the victim's, the other prompts may go later."""
    order, victim = order_of(trace), trace.case.victim
    fixed = tuple(n for n, r in enumerate(order.requests) if victim in r.places)
    loose = tuple(n for n in range(len(order.requests)) if n not in fixed)
    made = partial(_of_requests, trace, order, fixed)
    kept = yield from _tried(fewer(loose), made)
    return made(kept) if len(kept) < len(loose) else trace


def _prompts(trace: Trace) -> Trials:
    """Fewer prompts in requests that hold several."""
    fixed = {p for r in order_of(trace).requests for p in r.places if len(r.places) == 1}
    fixed |= {trace.case.victim} if trace.case.victim is not None else set()
    loose = tuple(p for p in range(len(trace.sent)) if p not in fixed)
    kept = yield from _tried(fewer(loose), lambda some: cuts.keep(trace, {*some, *fixed}))
    return cuts.keep(trace, {*kept, *fixed}) if len(kept) < len(loose) else trace


def _alone(trace: Trace) -> Trials:
    """One request at a time: all of them, or as many as may be."""
    if trace.case.at_us:
        candidate = cuts.asked_last(trace)
        if (yield candidate):
            trace = candidate
    everything = range(len(order_of(trace).requests))
    candidate = cuts.apart(trace, everything)
    if size(candidate) == size(trace):
        return trace
    if (yield candidate):
        return candidate
    for number in everything:
        candidate = cuts.apart(trace, [number])
        if size(candidate) < size(trace) and (yield candidate):
            trace = candidate
    return (yield from _together(trace))


def _together(trace: Trace) -> Trials:
    """What has to run side by side, as one request where that does it: timing is then no part of it."""
    number = 0
    while number + 1 < len(order_of(trace).requests):
        merged = cuts.together(trace, number, number + 1)
        if merged is not None and size(merged) < size(trace) and (yield merged):
            trace = merged
        else:
            number += 1
    return trace


def _actions(trace: Trace) -> Trials:
    """Fewer actions; those that no replay can do go first, since they are not done anyway."""
    playable = tuple(number for number, acted in enumerate(trace.acted) if acted.playable)
    if len(playable) < len(trace.acted):
        trace = cuts.with_acted(trace, playable)
    if not trace.acted:
        return trace
    places = tuple(range(len(trace.acted)))
    kept = yield from _tried(fewer(places), lambda some: cuts.with_acted(trace, some))
    return cuts.with_acted(trace, kept) if len(kept) < len(places) else trace


def _aborts(trace: Trace) -> Trials:
    for place, sent in enumerate(trace.sent):
        if sent.abort_us is not None:
            candidate = cuts.without_abort(trace, place)
            if (yield candidate):
                trace = candidate
    return trace


def _number(trials: Generator[int, bool, int], made: Callable[[int], Trace]) -> Generator[Trace, bool, int]:
    try:
        candidate = next(trials)
        while True:
            candidate = trials.send((yield made(candidate)))
    except StopIteration as done:
        found: int = done.value
        return found


def _outputs(trace: Trace) -> Trials:
    for place in range(len(trace.sent)):
        most = trace.sent[place].max_new_tokens
        if most > 1:
            fewest = yield from _number(least(1, most), partial(cuts.with_output, trace, place))
            trace = trace if fewest == most else cuts.with_output(trace, place, fewest)
    return trace


def _lengths(trace: Trace) -> Trials:
    for place in range(len(trace.sent)):
        most = cuts.own_len(trace.sent[place])
        if most > 1:
            fewest = yield from _number(least(1, most, coarse=16), partial(cuts.with_own, trace, place))
            trace = trace if fewest == most else cuts.with_own(trace, place, fewest)
    return trace


def _question(trace: Trace) -> Trials:
    """A shorter tail, and a question about an earlier part of the prefix."""
    tail = len(trace.case.ids) - trace.case.start
    if tail > _SHORTEST_TAIL:
        fewest = yield from _number(least(_SHORTEST_TAIL, tail, coarse=4), partial(cuts.with_tail, trace))
        trace = trace if fewest == tail else cuts.with_tail(trace, fewest)
    start = trace.case.start
    for quarters in (1, 2, 3):
        earlier = start * quarters // 4 // _UNIT * _UNIT
        if 0 < earlier < start:
            candidate = cuts.with_boundary(trace, earlier)
            if (yield candidate):
                return candidate
    return trace
