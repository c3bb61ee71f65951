"""The model is worth testing with: its logits vary, and it depends on its whole context."""

from __future__ import annotations

import numpy as np
import pytest

from soak.sim.direct import scores
from tests.sim.asking import direct, prompt


@pytest.mark.parametrize("model", ["hybrid", "attention"])
def test_logits_have_the_intended_spread(model: str) -> None:
    sim = direct(model=model)
    runner = sim.scheduler.runner
    seen = []
    whole = runner.model.logits
    runner.model.logits = lambda hidden: seen.append(whole(hidden)) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    sim.ask(prompt(400), score_from=0)
    assert 2.2 < np.concatenate(seen).std() < 2.8


@pytest.mark.parametrize("model", ["hybrid", "attention"])
def test_the_far_context_matters(model: str) -> None:
    """What oracle calls the denominator of amnesia, over 24 sampled tokens with all but 64 tokens cut out."""
    lost = []
    for seed in range(6):
        sim = direct(model=model)
        ids = prompt(600, seed=seed)
        written = sim.send(ids, new=24, temperature=1.0, seed=seed)
        sim.drain()
        cold = scores(sim.ask(written.ids, score_from=600, key="cold"))
        blank = scores(sim.ask(written.ids[600 - 64 :], score_from=64, key="blank"))
        lost.append(cold.sum() - blank.sum())
    assert np.median(lost) > 6.0
    assert min(lost) > 1.0


def test_state_and_first_token_reach_far() -> None:
    sim = direct()
    ids, other = prompt(800), prompt(800)
    other[0] = 3 + (other[0] + 1) % 900
    d = scores(sim.ask(ids, score_from=700)) - scores(sim.ask(other, score_from=700))
    assert np.abs(d).max() > 1e-4
