"""Candidates that the simulator lists: of the very distribution that the logprobs are of."""

from __future__ import annotations

import numpy as np
import pytest

from soak.sim.numerics import F64, ProductionNumerics
from soak.sim.request import Request
from tests.sim.asking import direct

VOCAB = 1000
IDS = [20 + 7 * i % 900 for i in range(90)]


def scored(request: Request) -> tuple[F64, F64, list[tuple[list[float], list[int]]]]:
    """Logprobs of the tokens after the start, of the whole vocabulary at each, and the lists of the best."""
    assert request.inputs is not None
    return np.array(request.inputs.chosen), np.array(request.inputs.picked), request.inputs.top


def ask(settings: dict[str, object], start: int = 60, new: int = 0) -> Request:
    sim = direct(**settings)
    sim.ask(IDS[:60])
    request = sim.send(IDS, new, start)
    request.top_logprobs_num, request.token_ids_logprob = 5, tuple(range(VOCAB))
    sim.drain()
    return request


@pytest.mark.parametrize("numerics", ["exact", "production"])
def test_lists_belong_to_one_distribution_and_to_the_standing_token(numerics: str) -> None:
    request = ask({"numerics": numerics}, new=3)
    chosen, whole, top = scored(request)
    assert request.cached == 60
    assert whole.shape == (29, VOCAB)
    assert np.exp(whole).sum(axis=1) == pytest.approx(np.ones(29), abs=1e-9)
    for place, token in enumerate(IDS[61:]):
        assert chosen[place] == whole[place, token]
        best = np.argsort(-whole[place], kind="stable")[:5]
        assert top[place] == (whole[place, best].tolist(), best.tolist())
    for place, token in enumerate(request.output[:3]):
        row = np.array(request.output_picked[place])
        assert np.exp(row).sum() == pytest.approx(1.0, abs=1e-9)
        assert request.output_logprobs[place] == row[token]


def test_a_token_that_is_nats_off_leaves_a_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a router's tie breaks the other way: never a logprob over 0, and the others make room."""
    clean = ask({"numerics": "production"})
    monkeypatch.setattr(ProductionNumerics, "outliers", lambda self, n: np.full(n, 8.0))
    moved = ask({"numerics": "production"})
    before, after = scored(clean)[0], scored(moved)[0]
    assert (after < 0).all()
    assert (after > before + 1.0).any()
    assert np.exp(scored(moved)[1]).sum(axis=1) == pytest.approx(np.ones(29), abs=1e-9)
