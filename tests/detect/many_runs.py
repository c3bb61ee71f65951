"""Many runs of the evidence channels at once, on made-up probes, by the detector's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from soak.detect.edetector import SHARES, advance_all
from soak.detect.evidence import ABSOLUTE_WEIGHT, MAGNITUDE_WEIGHT

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

Draw = Callable[[int, Array, np.random.Generator], tuple[Array, Array, Indices]]
"""(step, ln evidence by run and stream, generator) to exceedances in {0, 1}, magnitudes in [0, 1], streams,
each of shape (runs,). It sees all evidence so far, as an adversary would."""

LOG_WEIGHTS = np.log(np.repeat([ABSOLUTE_WEIGHT, MAGNITUDE_WEIGHT], len(SHARES)) / len(SHARES))


def log_bets(values: Array, bound: float) -> Array:
    """``log_bet`` of many values at once: shape values.shape + (shares,)."""
    return np.asarray(
        np.log1p(np.multiply.outer((values - bound) / bound, np.array(SHARES))), dtype=np.float64
    )


def coins(rng: np.random.Generator, runs: int, chance: float | Array) -> Array:
    """1 with the given chance, else 0, for each run."""
    uniform: Array = rng.random(runs)
    return np.asarray(uniform < chance, dtype=np.float64)


def run_lengths(
    draw: Draw, p0: float, m0: float, run_length: float, *, runs: int, streams: int, steps: int, seed: int
) -> Array:
    """Probes until the sum over streams reaches ``run_length``, (runs,); ``steps`` if it does not."""
    rng = np.random.default_rng(seed)
    log_m = np.full((runs, streams, LOG_WEIGHTS.size), -np.inf)
    totals = np.full((runs, streams), -np.inf)
    lengths = np.full(runs, float(steps))
    running = np.ones(runs, dtype=bool)
    every = np.arange(runs)
    for step in range(steps):
        exceeds, size, stream = draw(step, totals, rng)
        log_e = np.concatenate([log_bets(exceeds, p0), log_bets(size, m0)], axis=1)
        stepped = advance_all(log_m[every, stream], log_e)
        log_m[every, stream] = stepped
        totals[every, stream] = np.logaddexp.reduce(stepped + LOG_WEIGHTS, axis=1)
        over = running & (np.logaddexp.reduce(totals, axis=1) >= np.log(run_length))
        lengths[over] = step + 1
        running &= ~over
        if not running.any():
            break
    return lengths
