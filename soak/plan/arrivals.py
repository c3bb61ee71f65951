"""Arrival processes: the intended start of every index, in whole microseconds.

Pure and the same on every machine: integers only. Constant arrivals are exact fractions; Poisson gaps need a
logarithm, which is looked up in a fixed-point table made with ``decimal``, whose ``ln`` is correctly rounded
by its specification, where libm's is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt

from soak.plan.words import raw_words

_MICROSECONDS = 1_000_000
_BLOCK = 1024  # gaps drawn at once; part of the plan: changing it changes every Poisson plan
_POINT = 40  # binary digits after the point of the fixed-point logarithm
_TABLE_BITS = 10
_RAMP = 256  # indices from quiet to twice the rate; part of the plan


@lru_cache(maxsize=1)
def _log_table() -> tuple[int, npt.NDArray[np.int64]]:
    """(ln 2, ln(1 + j / 1024) for j = 0..1024) in units of 2^-40, rounded."""
    exact = Context(prec=30)
    size = 1 << _TABLE_BITS
    steps = [exact.ln(Decimal(size + j) / size) for j in range(size + 1)]
    unit = Decimal(1 << _POINT)
    table = np.array([int((step * unit).to_integral_value()) for step in steps], np.int64)
    return int((exact.ln(Decimal(2)) * unit).to_integral_value()), table


def _unit_gaps(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """-ln(u) for u = w / 2^64, in units of 2^-40, shape as ``words``.

    u = (1 + f) / 2^k: k ln 2 - ln(1 + f), f looked up with linear interpolation (error under 2^-22).
    """
    ln2, table = _log_table()
    mantissa = words | np.uint64(1)  # u is never 0
    halvings = np.ones(words.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        low = mantissa < np.uint64(1 << (64 - step))
        mantissa = np.where(low, mantissa << np.uint64(step), mantissa)
        halvings += np.where(low, step, 0)
    fraction = ((mantissa >> np.uint64(32)) & np.uint64(0x7FFFFFFF)).astype(np.int64)
    rest_bits = 31 - _TABLE_BITS
    place, rest = fraction >> rest_bits, fraction & ((1 << rest_bits) - 1)
    logs = table[place] + (((table[place + 1] - table[place]) * rest) >> rest_bits)
    gaps: npt.NDArray[np.int64] = halvings * ln2 - logs
    return gaps


class Arrivals(Protocol):
    """When index i is meant to start."""

    def at_us(self, index: int) -> int:
        """Microseconds from the start of the run."""
        ...


class Constant:
    """Index i at i / rate seconds."""

    def __init__(self, rate: Fraction) -> None:
        self._gap = _MICROSECONDS / rate

    def at_us(self, index: int) -> int:
        """Microseconds from the start of the run."""
        return int(self._gap * index)


class Poisson:
    """Independent exponential gaps with mean 1 / rate; index 0 comes after the first gap.

    The sum up to a block's start is kept, so walking forward costs one gap an index and a jump costs the gaps
    on the way, once.
    """

    def __init__(self, rate: Fraction, seed: int) -> None:
        self._mean_us = _MICROSECONDS / rate
        self._seed = seed
        self._starts = [0]  # sum of all gaps before block b
        self._block: tuple[int, list[int]] = (-1, [])

    def _times(self, block: int) -> list[int]:
        gaps = _unit_gaps(raw_words(self._seed, "arrival-gap", block, _BLOCK)).tolist()
        numerator, denominator = self._mean_us.numerator, self._mean_us.denominator << _POINT
        at = self._starts[block]
        times = []
        for gap in gaps:
            at += gap * numerator // denominator
            times.append(at)
        return times

    def at_us(self, index: int) -> int:
        """Microseconds from the start of the run."""
        block, place = divmod(index, _BLOCK)
        while len(self._starts) <= block:
            self._starts.append(self._times(len(self._starts) - 1)[-1])
        if self._block[0] != block:
            self._block = (block, self._times(block))
        return self._block[1][place]


class Burst:
    """``width`` indices at once, then nothing until the next ones are due; the mean rate is ``rate``."""

    def __init__(self, rate: Fraction, width: int) -> None:
        self._gap, self._width = _MICROSECONDS / rate, width

    def at_us(self, index: int) -> int:
        """Microseconds from the start of the run."""
        return int(self._gap * (index // self._width * self._width))


class Ramp:
    """From nothing to twice the rate, evenly, over 256 indices, and again; the mean rate is ``rate``.

    A rate that grows as 2 r t / T has seen r t^2 / T arrivals by t: of the N = r T in a ramp, the j-th comes
    at T sqrt(j / N).
    """

    def __init__(self, rate: Fraction) -> None:
        self._ramp_us = int(_MICROSECONDS * _RAMP / rate)

    def at_us(self, index: int) -> int:
        """Microseconds from the start of the run."""
        ramp, place = divmod(index, _RAMP)
        return ramp * self._ramp_us + isqrt(self._ramp_us**2 * place // _RAMP)


def arrivals(kind: str, rate: str, seed: int, burst: int = 1) -> Arrivals:
    """The process of that name; ``rate`` in indices per second, as a decimal string so that it is exact.

    burst: how many indices come at once where the process is ``burst``.
    """
    exact = Fraction(rate)
    if exact <= 0:
        raise ValueError(f"rate {rate} must be above 0")
    if kind == "constant":
        return Constant(exact)
    if kind == "burst":
        return Burst(exact, burst)
    return Ramp(exact) if kind == "ramp" else Poisson(exact, seed)


def walk(process: Arrivals, first: int, stride: int) -> Iterator[tuple[int, int]]:
    """(index, at_us) for first, first + stride, ...: one shard's endless share."""
    index = first
    while True:
        yield index, process.at_us(index)
        index += stride
