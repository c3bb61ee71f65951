"""How fast the simulator is on this machine.

Prefill tokens per second, and decode tokens per second at batch 8.

Measures the engine without HTTP, in CPU seconds of this process, so a busy machine does not lie. Figures are
of
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from soak.sim.config import ModelKind, Numerics, SimConfig
from soak.sim.direct import Direct


@dataclass(frozen=True, slots=True)
class Speed:
    """startup_s: seconds to build the engine; the rest tokens per second."""

    model: str
    numerics: str
    startup_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


def measure(
    model: ModelKind = "hybrid", numerics: Numerics = "production", prompts: int = 8, steps: int = 100
) -> Speed:
    """Prefill ``prompts`` prompts of 1,000 tokens, then decode ``steps`` steps at batch 8, contexts of 300 to
    400.
    """
    began = time.process_time()
    sim = Direct(SimConfig(model=model, numerics=numerics))
    startup = time.process_time() - began
    rng = np.random.default_rng(0)
    sim.ask(rng.integers(3, 1000, 1000))
    began = time.process_time()
    for _ in range(prompts):
        sim.ask(rng.integers(3, 1000, 1000))
    prefill = prompts * 1000 / (time.process_time() - began)
    for _ in range(8):
        sim.send(rng.integers(3, 1000, 300), new=steps + 50)
    while len(sim.scheduler.running) < 8:
        sim.scheduler.step()
    began = time.process_time()
    for _ in range(steps):
        sim.scheduler.step()
    decode = 8 * steps / (time.process_time() - began)
    sim.drain()
    return Speed(model, numerics, startup, prefill, decode)
