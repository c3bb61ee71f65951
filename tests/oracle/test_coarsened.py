from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.oracle.coarsened import ROUNDING, CoarsenedKL, Listed, coarsened_kl, kl_bounds
from soak.sglang.exchange import Candidates
from tests.sim.asking import direct

Array = npt.NDArray[np.float64]

logits = st.one_of(st.floats(-40.0, 20.0), st.floats(-2000.0, 20.0), st.just(-math.inf))


def law(values: list[float]) -> Array:
    """Logprobs of a distribution, by softmax; -inf stays -inf."""
    shifted = np.array(values) - max(values)
    return np.asarray(shifted - math.log(math.fsum(np.exp(shifted))), dtype=np.float64)


@st.composite
def laws(draw: st.DrawFn) -> tuple[Array, Array]:
    size = draw(st.integers(2, 12))
    pair = []
    for _ in range(2):
        values = draw(st.lists(logits, min_size=size, max_size=size))
        values[draw(st.integers(0, size - 1))] = 0.0  # one of them has a probability
        pair.append(law(values))
    return pair[0], pair[1]


def true_kl(cold: Array, warm: Array) -> float:
    p = np.exp(cold)
    held = p > 0.0
    with np.errstate(invalid="ignore"):
        return float(np.sum(p[held] * (cold[held] - warm[held])))


def listed(law: Array, token: int, k: int) -> Listed:
    """One place, as a server lists it: the standing token, and the k best of the vocabulary."""
    best = np.argsort(-law, kind="stable")[:k].astype(np.int32)
    ids = np.full((1, k), -1, np.int32)
    logprobs = np.full((1, k), np.nan)
    ids[0, : best.size], logprobs[0, : best.size] = best, law[best]
    return Listed(np.array([token], np.int32), law[[token]], Candidates(ids, logprobs))


@settings(max_examples=200, deadline=None)
@given(laws(), st.integers(0, 11), st.integers(0, 14))
def test_never_above_the_true_divergence(pair: tuple[Array, Array], token: int, k: int) -> None:
    cold, warm = pair
    token %= cold.size
    (bound,) = kl_bounds(listed(cold, token, k), listed(warm, token, k))
    assert bound >= 0.0
    assert bound <= true_kl(cold, warm) * (1 + 1e-9) + 1e-9


@settings(max_examples=200, deadline=None)
@given(laws(), st.integers(0, 11), st.integers(1, 8), st.lists(st.booleans(), min_size=16, max_size=16))
def test_missing_candidates_make_it_smaller_never_wrong(
    pair: tuple[Array, Array], token: int, k: int, missing: list[bool]
) -> None:
    cold, warm = pair
    token %= cold.size
    both = [listed(cold, token, k), listed(warm, token, k)]
    for place, lost in enumerate(missing):
        top = both[place % 2].top
        if lost and place // 2 < k:
            top.logprobs[0, place // 2] = np.nan
            top.ids[0, place // 2] = -1 if place % 4 < 2 else top.ids[0, place // 2]
    (bound,) = kl_bounds(*both)
    assert 0.0 <= bound <= true_kl(cold, warm) * (1 + 1e-9) + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-8.0, 0.0), min_size=2, max_size=10), st.data())
def test_all_candidates_known_is_the_divergence_itself(values: list[float], data: st.DataObject) -> None:
    cold = law(values)
    warm = law(data.draw(st.lists(st.floats(-8.0, 0.0), min_size=len(values), max_size=len(values))))
    (bound,) = kl_bounds(listed(cold, 0, len(values)), listed(warm, 0, len(values)))
    assert bound == pytest.approx(true_kl(cold, warm), abs=20 * ROUNDING)


@settings(max_examples=100, deadline=None)
@given(laws(), st.integers(0, 11), st.integers(0, 12))
def test_a_pass_against_itself_is_zero(pair: tuple[Array, Array], token: int, k: int) -> None:
    one = listed(pair[0], token % pair[0].size, k)
    assert coarsened_kl(one, one) == CoarsenedKL(1, 0.0, 0.0)


def test_lists_that_share_no_token_still_say_much() -> None:
    """Cold is sure of token 0, warm of token 1, and lists it not: q(0) is at most its least."""
    cold, warm = law([0.0, -9.0, -9.0, -9.0, -9.0]), law([-9.0, 0.0, -6.0, -9.0, -9.0])
    (bound,) = kl_bounds(listed(cold, 4, 1), listed(warm, 4, 2))
    true = true_kl(cold, warm)
    assert true == pytest.approx(9.0, rel=0.01)
    assert 0.6 * true < bound < true
    (alone,) = kl_bounds(listed(cold, 4, 0), listed(warm, 4, 0))
    assert alone < 0.01  # the standing token alone says next to nothing


def test_two_tokens_by_hand() -> None:
    cold, warm = np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.5, 0.25])
    (bound,) = kl_bounds(listed(cold, 0, 1), listed(warm, 0, 1))
    assert bound == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75), abs=1e-5)


def test_what_warm_rules_out_is_infinite() -> None:
    cold, warm = np.log([0.5, 0.5]), np.array([0.0, -np.inf])
    (bound,) = kl_bounds(listed(cold, 1, 2), listed(warm, 1, 2))
    assert bound == np.inf


def test_mean_and_largest_over_places() -> None:
    cold, warm = np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.5, 0.25])
    one, other = listed(cold, 0, 3), listed(warm, 0, 3)

    def stacked(first: Listed, second: Listed) -> Listed:
        return Listed(
            np.concatenate([first.ids, second.ids]),
            np.concatenate([first.logprobs, second.logprobs]),
            Candidates(
                np.concatenate([first.top.ids, second.top.ids]),
                np.concatenate([first.top.logprobs, second.top.logprobs]),
            ),
        )

    found = coarsened_kl(stacked(one, one), stacked(other, one))
    assert found.tokens == 2
    assert found.largest == pytest.approx(true_kl(cold, warm), abs=1e-5)
    assert found.mean == pytest.approx(found.largest / 2)


def test_other_tokens_are_refused() -> None:
    some = law([0.0, -1.0, -2.0])
    with pytest.raises(ValueError, match="not of the same tokens"):
        kl_bounds(listed(some, 0, 1), listed(some, 1, 1))
    nothing = Listed(
        np.empty(0, np.int32), np.empty(0), Candidates(np.empty((0, 1), np.int32), np.empty((0, 1)))
    )
    with pytest.raises(ValueError, match="not of the same tokens"):
        kl_bounds(nothing, nothing)


@pytest.mark.parametrize("fault", ["middle-truncated", "state-not-restored"])
def test_on_a_simulated_server_more_candidates_tell_more_and_never_too_much(fault: str) -> None:
    """Against the divergence over the whole vocabulary, which a simulator can be asked for."""
    sim = direct(faults=(fault,))
    ids = np.random.default_rng(3).integers(10, 1000, 240).tolist()
    sim.ask(ids[:200])
    passes = []
    for namespace in (None, "cold"):
        request = sim.send(ids, 0, 200, namespace)
        request.top_logprobs_num, request.token_ids_logprob = 20, tuple(range(1000))
        sim.drain()
        assert request.inputs is not None
        passes.append(request.inputs)
    warm, cold = (np.array(inputs.picked) for inputs in passes)
    true = np.sum(np.exp(cold) * (cold - warm), axis=1)
    standing, means = np.array(ids[201:], np.int32), []
    for k in (0, 1, 2, 5, 10, 20):
        both = []
        for inputs in passes:
            best = np.array([row[1][:k] for row in inputs.top], np.int32).reshape(standing.size, k)
            logprobs = np.array([row[0][:k] for row in inputs.top]).reshape(standing.size, k)
            both.append(Listed(standing, np.array(inputs.chosen), Candidates(best, logprobs)))
        bounds = kl_bounds(both[1], both[0])
        assert (bounds <= true + 1e-9).all()
        means.append(float(bounds.mean()))
    assert means == sorted(means)
    assert means[3] > 0.1  # of 1.4 and 1.5 nats; five candidates hold a third of the probability here
