"""What a request costs a part that has seen many, beside one that has seen few, in one process.

Both work on segments by turns, in CPU time, so that whatever else the machine does meanwhile hits both.
Memory is that of the process before the second part is made.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from soak.bench.flat.parts import PARTS, Part

TIME_TOLERANCE, MEMORY_TOLERANCE = 0.25, 0.10
TURNS = 20


@dataclass(frozen=True, slots=True)
class Flatness:
    """Of one part. few_us, many_us: CPU microseconds per unit after few and after many, medians of turns;
    time_ratio: many over few, the median over turns; few_bytes, many_bytes: resident memory of the process.
    """

    part: str
    unit: str
    few: int
    many: int
    few_us: float
    many_us: float
    time_ratio: float
    few_bytes: int
    many_bytes: int

    @property
    def memory_ratio(self) -> float:
        """After many over after few."""
        return self.many_bytes / self.few_bytes

    @property
    def flat(self) -> bool:
        """Within the tolerances; to cost less is no fault."""
        return self.time_ratio <= 1 + TIME_TOLERANCE and self.memory_ratio <= 1 + MEMORY_TOLERANCE


def measure(part: str, few: int, many: int, say: Callable[[str], None] = lambda _words: None) -> Flatness:
    """Feed one part ``many`` units. Needs a process of its own for memory to be that part's.

    Raises RuntimeError if the part cannot follow, ValueError where few is not less than many.
    """
    if not 0 < few < many:
        raise ValueError(f"{few} is not fewer than {many}")
    segment = max(1, min(1000, few // 5))
    old = PARTS[part]()
    try:
        _age(old, few, segment)
        few_bytes = resident_bytes()
        for done in range(few, many, max(segment, many // 20)):
            _age(old, min(max(segment, many // 20), many - done), segment)
            say(f"{part}: {done:,} of {many:,}")
        many_bytes = resident_bytes()
        young = PARTS[part]()
        try:
            _age(young, few, segment)
            turns = [(_timed(young, segment), _timed(old, segment)) for _ in range(TURNS)]
        finally:
            young.close()
    finally:
        old.close()
    return Flatness(
        part=part,
        unit=old.unit,
        few=few,
        many=many,
        few_us=median(a for a, _ in turns),
        many_us=median(b for _, b in turns),
        time_ratio=median(b / a for a, b in turns),
        few_bytes=few_bytes,
        many_bytes=many_bytes,
    )


def _age(part: Part, count: int, segment: int) -> None:
    for done in range(0, count, segment):
        part.prepare(min(segment, count - done))
        part.work()


def _timed(part: Part, count: int) -> float:
    """CPU microseconds per unit, of all threads."""
    part.prepare(count)
    began = time.process_time()
    part.work()
    return (time.process_time() - began) / count * 1e6


def resident_bytes() -> int:
    """Resident memory of this process, after a collection. Linux only: raises RuntimeError elsewhere."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError as error:
        raise RuntimeError("resident memory is read from /proc/self/statm, which only Linux has") from error
    return pages * os.sysconf("SC_PAGE_SIZE")
