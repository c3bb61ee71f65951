"""Random weights of the tiny model, drawn once from the seed, on the weight grid.

Spreads are chosen so that the context matters: logits have a standard deviation near 2.5, attention is
peaked, and the slowest SSM head forgets over about a thousand tokens (with a fast decay a lost state would
hardly show).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.sim.config import SimConfig
from soak.sim.numerics import ACT, F64, WEIGHT, on_grid

HIDDEN = 32
HEADS = 2
HEAD_DIM = 16
SSM_HEADS = 4
SSM_HEAD_DIM = 8
SSM_STATE = 8
INNER = SSM_HEADS * SSM_HEAD_DIM
SSM_WIDTH = INNER * SSM_STATE
KERNEL = 4
LOGIT_STD = 2.5
SCORE_STD = 4.0
DECAY_RATES = (0.02, 0.05, 0.15, 0.5)


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """qkv: (hidden, 3 * heads * head_dim); out: (heads * head_dim, hidden); window: 0 = full attention."""

    qkv: F64
    out: F64
    window: int


@dataclass(frozen=True, slots=True)
class ShortConvWeights:
    """Gated short convolution.

    into: (hidden, 3 * hidden); kernel: (4, hidden), oldest first; out: (hidden, hidden).
    """

    into: F64
    kernel: F64
    out: F64


@dataclass(frozen=True, slots=True)
class SsmWeights:
    """Selective state space. into: (hidden, 2 * inner + 2 * state + heads): x, gate, B, C, dt."""

    into: F64
    kernel: F64
    out: F64


LayerWeights = AttentionWeights | ShortConvWeights | SsmWeights


@dataclass(frozen=True, slots=True)
class Weights:
    """embed: (vocab, hidden); unembed: (hidden, vocab); adapters: (1 + adapters, hidden), row 0 all ones."""

    embed: F64
    unembed: F64
    adapters: F64
    layers: tuple[LayerWeights, ...]


def draw(config: SimConfig) -> Weights:
    """The weights that belong to ``config``: same seed and kind, same weights."""
    rng = np.random.Generator(np.random.Philox(key=[config.seed, 0x50AC]))

    def normal(rows: int, columns: int, std: float) -> F64:
        return on_grid(rng.standard_normal((rows, columns)) * std, WEIGHT, 4.0)

    def attention(window: int, gain: float = 1.0) -> AttentionWeights:
        sharp = (SCORE_STD**0.5) / HIDDEN**0.5
        width = HEADS * HEAD_DIM
        qk, v = normal(HIDDEN, 2 * width, sharp), normal(HIDDEN, width, 1.2 / HIDDEN**0.5)
        return AttentionWeights(np.hstack([qk, v]), normal(width, HIDDEN, gain / width**0.5), window)

    def kernel(channels: int) -> F64:
        return normal(KERNEL, channels, 0.5)

    fan = 1.0 / HIDDEN**0.5
    embed = on_grid(rng.standard_normal((config.vocab, HIDDEN)), ACT, 4.0)
    unembed = normal(HIDDEN, config.vocab, LOGIT_STD * fan)
    layers: tuple[LayerWeights, ...]
    if config.hybrid:
        short = ShortConvWeights(
            normal(HIDDEN, 3 * HIDDEN, fan), kernel(HIDDEN), normal(HIDDEN, HIDDEN, 1.2 * fan)
        )
        ssm_in = normal(HIDDEN, 2 * INNER + 2 * SSM_STATE + SSM_HEADS, fan)
        ssm = SsmWeights(ssm_in, kernel(INNER), normal(INNER, HIDDEN, 1.2 * fan))
        # one layer sees the far context exactly; it must not drown beside three that do not
        layers = (short, attention(config.window), ssm, attention(0, gain=2.0))
    else:
        layers = (attention(config.window), attention(0), attention(0))
    adapters = np.ones((1 + len(config.lora_adapters), HIDDEN))
    for row in range(1, len(adapters)):
        adapters[row] = np.where(rng.random(HIDDEN) < 0.5, -1.0, 1.0)
    return Weights(embed, unembed, adapters, layers)
