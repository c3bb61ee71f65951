"""Does a smaller trace reproduce about as often as the one it was cut from? Wald's sequential test. Pure.

A fault that shows in one replay of three must shrink as well as one that always shows, so one failure refutes
nothing and one success is not enough: a rate that fell to a quarter would be of no use to the person who gets
the trace. Each replay moves a log likelihood ratio between the present rate and a quarter of it, until it
passes a bound (Wald, "Sequential tests of statistical hypotheses", 1945).
"""

from __future__ import annotations

import math

_WRONG = 0.1  # chance of either error
_ACCEPT = math.log((1 - _WRONG) / _WRONG)
_FELL_TO = 4.0  # the rate that is refused, as a part of the present one
_HIGHEST = 0.95  # no finite number of replays shows a rate of 1
_LOWEST = 0.05
_MOST = 60


def rate_of(reproduced: float, replays: float) -> float:
    """The rate to test against, from what was seen: 0.95 for all of them, never below 0.05."""
    return min(_HIGHEST, max(_LOWEST, reproduced / replays if replays else 0.0))


class Sequential:
    """One test: ``tell`` it readings until it decides. rate: how often the present trace reproduces.

    At a rate of 0.95 two successes keep a cut and one failure refuses it; at 0.3, two and seven in a row.
    """

    def __init__(self, rate: float) -> None:
        low = rate / _FELL_TO
        self._success = math.log(rate / low)
        self._failure = math.log((1 - rate) / (1 - low))
        self._ratio = 0.0
        self.reproduced = 0
        self.replays = 0

    def tell(self, reproduced: bool) -> bool | None:
        """True: as good as before. False: it is not. None: not yet known."""
        self.replays += 1
        self.reproduced += reproduced
        self._ratio += self._success if reproduced else self._failure
        if self._ratio >= _ACCEPT:
            return True
        if self._ratio <= -_ACCEPT or self.replays >= _MOST:
            return False
        return None
