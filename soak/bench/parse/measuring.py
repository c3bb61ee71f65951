"""Decoding beside ``orjson.loads`` of the same bytes, and how long either keeps an event loop waiting.

By turns. Bodies differ from turn to turn, as answers do; a list that comes again is timed apart, since it is
not parsed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import orjson

from soak.bench.parse.answers import TOP, Scored, scored
from soak.sglang.wire import decode_generate

CASES = ((4096, 0), (4096, TOP), (131_072, 0), (131_072, TOP))
"""Prompt logprobs, and candidates beside each."""

_DIFFERENT = 5  # one more than the decoder remembers
_OFTEN = 32_768  # logprobs; answers of fewer are read more often, since a few milliseconds say little
_TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one size. Seconds of CPU, medians of turns: loads_s of ``orjson.loads``, decode_s from bytes to
    checked arrays, again_s of an answer whose lists are those of the one before.

    ratio: loads over decode, the median of turns. pause_s, loads_pause_s: the longest that an event loop did
    not run while a thread decoded, or loaded, and idle_pause_s while one slept as long as decoding took:
    other programs' share of the cores is in all three. Seconds of the clock, medians of turns.
    """

    tokens: int
    top: int
    body_bytes: int
    loads_s: float
    decode_s: float
    again_s: float
    ratio: float
    pause_s: float
    loads_pause_s: float
    idle_pause_s: float


def measure(tokens: int, top: int, turns: int) -> Speed:
    """One size, small ones more often. Raises RuntimeError where a decoded answer is not good."""
    turns *= max(1, _OFTEN // tokens)
    answers = [scored(tokens, top, seed) for seed in range(_DIFFERENT)]
    timed = []
    for turn in range(turns):
        one = answers[turn % _DIFFERENT]
        loads = _cpu_s(lambda body=one.body: orjson.loads(body))  # type: ignore[misc]
        decode = _cpu_s(lambda each=one: _decode(each))  # type: ignore[misc]
        again = _cpu_s(lambda each=one: _decode(each))  # type: ignore[misc]
        timed.append((loads, decode, again))
    pauses = asyncio.run(_pauses(answers, turns))
    return Speed(
        tokens=tokens,
        top=top,
        body_bytes=len(answers[0].body),
        loads_s=median(each[0] for each in timed),
        decode_s=median(each[1] for each in timed),
        again_s=median(each[2] for each in timed),
        ratio=median(each[0] / each[1] for each in timed),
        pause_s=median(each[0] for each in pauses),
        loads_pause_s=median(each[1] for each in pauses),
        idle_pause_s=median(each[2] for each in pauses),
    )


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _decode(one: Scored) -> None:
    (answer,) = decode_generate(one.body, one.request)
    if not answer.ok or answer.input_logprobs.size != len(one.request.prompts[0]):
        raise RuntimeError(f"the answer was not read: {answer.outcome}, {answer.detail}")


async def _pauses(answers: Sequence[Scored], turns: int) -> list[tuple[float, float, float]]:
    found = []
    for turn in range(turns):
        one = answers[turn % _DIFFERENT]
        began = time.perf_counter()
        decode = await longest_pause(lambda each=one: _decode(each))  # type: ignore[misc]
        took = time.perf_counter() - began
        loads = await longest_pause(lambda each=one: orjson.loads(each.body))  # type: ignore[misc]
        idle = await longest_pause(lambda seconds=took: time.sleep(seconds))  # type: ignore[misc]
        found.append((decode, loads, idle))
    return found


async def longest_pause(work: Callable[[], object]) -> float:
    """The longest time between two turns of this event loop while a thread does the work, in seconds."""
    task = asyncio.create_task(asyncio.to_thread(work))
    longest, before = 0.0, time.perf_counter()
    while not task.done():
        await asyncio.sleep(_TICK_S)
        now = time.perf_counter()
        longest, before = max(longest, now - before - _TICK_S), now
    await task
    return longest
