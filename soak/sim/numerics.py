"""The simulator's arithmetic: a grid on which every sum is exact, and the noise of a real server on top.

*Exact*: activations, weights, keys and values lie on binary grids coarse enough that every sum of products
fits a float64 (scores: a float32), so the order of a sum, and with it chunking and batching, cannot matter:
warm and cold agree to the last bit. *Production*: the same arithmetic, with noise drawn afresh in every
forward pass where a real server has it. The noise is a model of figures measured on H200s, not of any kernel.
It must never depend on request content, or a detector could learn the simulator instead of the bug.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

ACT = 1024.0  # activations: multiples of 2^-10, clipped to +-16
KEY = 128.0  # queries, keys and values: multiples of 2^-7, clipped below 8, so a 16-term score fits a float32
WEIGHT = 256.0  # weights: multiples of 2^-8
PROB = 16384.0  # softmax numerators: multiples of 2^-14


def on_grid(x: F64, scale: float = ACT, limit: float = 16.0) -> F64:
    """``x`` rounded to multiples of 1/scale and clipped to +-limit; a new array of the same shape."""
    y = x * scale
    np.rint(y, out=y)
    y *= 1.0 / scale
    np.maximum(y, -limit, out=y)
    np.minimum(y, limit, out=y)
    return y


def rms_norm(x: F64) -> F64:
    """Rows of ``x`` over their root mean square.

    The mean is exact (grid), sqrt and division round correctly.
    """
    mean = np.einsum("ij,ij->i", x, x) / x.shape[1]
    return on_grid(x / np.sqrt(mean + 2.0**-10)[:, None])


def sigmoid(x: F64) -> F64:
    """Logistic function on the activation grid."""
    return on_grid(1.0 / (1.0 + np.exp(-x)))


def silu(x: F64) -> F64:
    """x * sigmoid(x) on the activation grid."""
    return on_grid(x / (1.0 + np.exp(-x)))


def log_softmax(logits: F64) -> F64:
    """Rows of log probabilities. Numerators lie on a 2^-40 grid, so the sum over the vocabulary is exact."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    weights = np.rint(np.exp(shifted) * 2.0**40)
    total: F64 = np.log(weights.sum(axis=1, keepdims=True) * 2.0**-40)
    result: F64 = shifted - total
    return result


class ExactNumerics:
    """No noise at all. One forward pass calls ``begin`` once and the other methods in a fixed order."""

    exact = True

    def begin(self) -> None:
        """Start a forward pass."""

    def residual(self, x: F64, scale: F64) -> F64:
        """The residual stream after a layer, back on the grid. scale: per token, 0 = an ordinary token."""
        del scale
        return on_grid(x)

    def decoded_state(self, state: F64) -> F64:
        """Recurrent state a decode step is about to write."""
        return state

    def outliers(self, n: int) -> F64:
        """Nats by which each of ``n`` logprobs is off on its own."""
        return np.zeros(n)


class ProductionNumerics(ExactNumerics):
    """Noise like a bf16 server's, from one stream per seed.

    It follows the schedule, and two cold passes differ.

    ``FORWARD`` is relative noise of the residual stream in every layer; ``scale`` multiplies it for tokens on
    noisier paths (the first extend after a hit runs other tile shapes; decode kernels others again). A per-
    pass log-normal factor gives probes the spread seen on real servers. ``OUTLIER_RATE`` of tokens are off by
    1 to 10 nats in either direction, as when a router's tie breaks the other way.
    """

    exact = False
    FORWARD = 0.0014
    SPREAD = 0.3
    DECODED_STATE = 0.0015
    OUTLIER_RATE = 1e-5

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
        self._sigma = self.FORWARD

    def begin(self) -> None:
        """Draw how noisy this pass is."""
        self._sigma = self.FORWARD * float(np.exp(self.SPREAD * self._rng.standard_normal()))

    def residual(self, x: F64, scale: F64) -> F64:
        """Relative Gaussian noise on every activation, then back on the grid."""
        noise = self._rng.standard_normal(x.shape, dtype=np.float32)
        noise *= (self._sigma * (1.0 + scale)).astype(np.float32)[:, None]
        noise += 1.0
        return on_grid(x * noise)

    def decoded_state(self, state: F64) -> F64:
        """A decode step rounds the state it writes; a prefill scan does so only at its end."""
        noise = self._rng.standard_normal(state.shape, dtype=np.float32)
        return np.rint(state * (1.0 + self.DECODED_STATE * noise))

    def outliers(self, n: int) -> F64:
        """Mostly zeros; rare shifts of 1 to 10 nats, either sign."""
        hit = self._rng.random(n) < self.OUTLIER_RATE
        if not hit.any():
            return np.zeros(n)
        return np.where(hit, self._rng.uniform(1.0, 10.0, n) * self._rng.choice([-1.0, 1.0], n), 0.0)
