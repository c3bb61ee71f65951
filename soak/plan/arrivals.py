"""Arrival processes: the intended start of every index, in whole microseconds.

Pure and the same on every machine: constant arrivals are exact fractions; Poisson gaps use ``decimal``, whose
``ln`` is correctly rounded by its specification, where libm's is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from typing import Protocol

from soak.plan.words import raw_words

_MICROSECONDS = 1_000_000
_BLOCK = 1024  # gaps drawn at once; part of the plan: changing it changes every Poisson plan
_EXACT = Context(prec=28)
_SPAN = Decimal(1 << 64)


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

    A gap is -ln(u) / rate with u = (w + 1) / 2^64 from one Philox word w. The sum up to a block's start is
    kept, so walking forward costs one gap an index and a jump costs the gaps on the way, once.
    """

    def __init__(self, rate: Fraction, seed: int) -> None:
        self._mean_us = Decimal(_MICROSECONDS * rate.denominator) / Decimal(rate.numerator)
        self._seed = seed
        self._starts = [0]  # sum of all gaps before block b
        self._block: tuple[int, list[int]] = (-1, [])

    def _times(self, block: int) -> list[int]:
        at = self._starts[block]
        times = []
        for word in raw_words(self._seed, "arrival-gap", block, _BLOCK).tolist():
            u = _EXACT.divide(Decimal(word + 1), _SPAN)
            at += int(_EXACT.multiply(-_EXACT.ln(u), self._mean_us))
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


def arrivals(kind: str, rate: str, seed: int) -> Arrivals:
    """The process of that name; ``rate`` in indices per second, as a decimal string so that it is exact."""
    exact = Fraction(rate)
    if exact <= 0:
        raise ValueError(f"rate {rate} must be above 0")
    return Constant(exact) if kind == "constant" else Poisson(exact, seed)


def walk(process: Arrivals, first: int, stride: int) -> Iterator[tuple[int, int]]:
    """(index, at_us) for first, first + stride, ...: one shard's endless share."""
    index = first
    while True:
        yield index, process.at_us(index)
        index += stride
