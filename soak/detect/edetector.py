"""Evidence that grows when a server turns bad and does not when it is well: Shiryaev-Roberts sums in logs.

A probe gives each channel an e-value L: a number >= 0 whose expectation, given all that came before, is at
most 1 while the server is well. The statistic M <- (M + 1) L then has expectation at most the number of its
probes, so the average number of probes until it reaches A by chance is at least A (Shin, Ramdas and Rinaldo,
"E-detectors", 2022). Nothing here knows what a probe is, and nothing here forgets an alarm or raises one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import add

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SHARES = (0.01, 0.03, 0.1, 0.3, 0.9)
"""The alternatives that are mixed: the share of a stream's probes which a fault would spoil."""


def log_bet(value: float, bound: float, shares: tuple[float, ...] = SHARES) -> tuple[float, ...]:
    """ln(1 + s (x - m) / m) for each share s.

    value: x in [0, 1]; bound: m in (0, 1], the largest mean of x while the server is well. The expectation of
    1 + s (x - m) / m is at most 1 as long as the mean of x is at most m. For x in {0, 1} it is the likelihood
    ratio of a Bernoulli variable at p1 = m + s (1 - m) against p0 = m; for x in between it is a bet with the
    share s of what can be lost (Waudby-Smith and Ramdas, 2020).
    """
    gain = (value - bound) / bound
    return tuple(math.log1p(share * gain) for share in shares)


def advance(log_m: float, log_e: float) -> float:
    """One step of M <- (M + 1) L in logs; ln M starts at -inf.

    ln(M + 1) is taken so that neither a huge M overflows nor a small one is lost.
    """
    if log_m > 0.0:
        return log_m + math.log1p(math.exp(-log_m)) + log_e
    return math.log1p(math.exp(log_m)) + log_e


def advance_all(log_m: Array, log_e: Array) -> Array:
    """``advance`` of many statistics at once, of one shape or of shapes that broadcast."""
    return np.asarray(np.logaddexp(log_m, 0.0) + log_e, dtype=np.float64)


def log_total(logs: Iterable[float]) -> float:
    """ln of the sum of what ``logs`` are the logs of; -inf for none."""
    held = list(logs)
    peak = max(held, default=-math.inf)
    if peak == -math.inf:
        return peak
    return peak + math.log(sum(math.exp(value - peak) for value in held))


class EDetector:
    """Shiryaev-Roberts statistics of many streams, and their sum.

    Every stream carries K components (a channel against one alternative), each with a statistic of its own;
    the components' weights sum to 1, so a stream's evidence, sum_k w_k M_k, has expectation at most its
    number of probes. A probe updates one stream; hence the sum over streams has expectation at most the
    number of probes, and the average run length to its reaching A is at least A, for any number of streams.
    To mix the M and not the L matters: a mixture of Bernoulli likelihood ratios at one step is again one
    likelihood ratio, and would have picked one alternative for all time.

    Plain floats, as a probe touches ten numbers and arrays of ten cost more than they save.
    """

    def __init__(self, weights: Iterable[float]) -> None:
        given = tuple(weights)
        if not given or min(given) <= 0.0 or not math.isclose(sum(given), 1.0):
            raise ValueError(f"weights of one stream are positive and sum to 1, not {given}")
        self._log_weights = tuple(math.log(weight) for weight in given)
        self._log_m: dict[str, list[float]] = {}
        self._weighed: dict[str, float] = {}

    def _weigh(self, log_m: Sequence[float]) -> float:
        return log_total(map(add, log_m, self._log_weights))

    def _stepped(self, stream: str, log_e: Sequence[float]) -> list[float]:
        current = self._log_m.get(stream)
        # (0 + 1) L for a stream that has seen nothing yet
        return list(log_e) if current is None else list(map(advance, current, log_e))

    def peek(self, stream: str, log_e: Sequence[float]) -> tuple[float, float]:
        """ln of the stream's evidence and of the sum, as they would be after ``update`` with the same."""
        own = self._weigh(self._stepped(stream, log_e))
        others = [self.log_stream(name) for name in self._log_m if name != stream]
        return own, log_total([own, *others])

    def update(self, stream: str, log_e: Sequence[float]) -> None:
        """Take one probe of a stream in: ln of the e-values of its K components.

        Raises ValueError for another number of them, or for an e-value that is no finite positive number.
        """
        if len(log_e) != len(self._log_weights) or not math.isfinite(sum(log_e)):
            raise ValueError(f"{len(self._log_weights)} finite ln e-values are wanted, not {log_e}")
        self._log_m[stream] = self._stepped(stream, log_e)
        self._weighed.pop(stream, None)

    def log_stream(self, stream: str) -> float:
        """ln of one stream's evidence; -inf for a stream that was never updated."""
        held = self._weighed.get(stream)
        if held is None:
            log_m = self._log_m.get(stream)
            if log_m is None:
                return -math.inf
            held = self._weighed[stream] = self._weigh(log_m)
        return held

    def log_sum(self) -> float:
        """ln of the evidence of all streams together; -inf before the first probe."""
        return log_total(self.log_stream(stream) for stream in self._log_m)

    def log_components(self, stream: str) -> list[float]:
        """ln(w_k M_k) of one stream, K of them; -inf for a stream that was never updated."""
        current = self._log_m.get(stream, [-math.inf] * len(self._log_weights))
        return list(map(add, current, self._log_weights))

    def streams(self) -> tuple[str, ...]:
        """Streams that were updated, in the order of their first probe."""
        return tuple(self._log_m)

    def forget(self, stream: str) -> None:
        """Start a stream afresh. Its past probes still count as probes of the run length."""
        self._log_m.pop(stream, None)
        self._weighed.pop(stream, None)

    def state(self) -> dict[str, list[float]]:
        """Streams and their ln M, for ``restore``."""
        return {stream: list(log_m) for stream, log_m in self._log_m.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Take over what ``state`` gave, in place of everything held. Raises ValueError for another shape."""
        for stream, log_m in state.items():
            if len(log_m) != len(self._log_weights) or not math.isfinite(sum(log_m)):
                raise ValueError(f"stored evidence of stream {stream} does not fit: {log_m}")
        self._log_m = {stream: [float(value) for value in log_m] for stream, log_m in state.items()}
        self._weighed = {}
