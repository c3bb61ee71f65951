from __future__ import annotations

import json

import numpy as np

from soak.detect.calibration import SCORE_FLOOR
from soak.detect.paired import EXCESS_MIN, FIRST_LOOK, PairedNull, looks_worse


def test_ties_and_rounding_are_not_worse() -> None:
    assert looks_worse(2e-4, 1e-4)
    assert not looks_worse(1e-4, 1e-4)
    assert not looks_worse(0.9 * SCORE_FLOOR, 0.0)


def test_unknown_without_controls_in_both_conditions() -> None:
    null = PairedNull()
    for _ in range(500):
        null.add(1e-4, True)
    assert null.share is None
    assert "0 of 50 pairs" in null.missing
    assert "500 more under load" in null.missing


def test_never_under_a_half_and_a_tenth() -> None:
    null = PairedNull()
    for _ in range(20 * FIRST_LOOK):
        null.add(1e-4, True)
        null.add(2e-4, False)
    assert null.share == 0.5 + EXCESS_MIN
    assert null.missing == ""


def test_learns_how_much_noisier_load_makes_a_resume() -> None:
    rng = np.random.default_rng(4)
    null = PairedNull()
    for _ in range(8 * FIRST_LOOK):
        null.add(rng.lognormal(-8.0, 0.5), True)
        null.add(rng.lognormal(-8.5, 0.5), False)
    assert null.share is not None
    assert 0.76 < null.share < 0.90  # the true P is Phi(1 / sqrt 2) = 0.76


def test_a_short_look_gives_a_wide_bound() -> None:
    null = PairedNull()
    for i in range(FIRST_LOOK):
        null.add(1e-4 if i % 2 else 3e-4, True)
        null.add(2e-4, False)
    assert null.share is not None
    assert 0.7 < null.share < 0.8


def test_state_round_trip() -> None:
    null = PairedNull()
    for i in range(130):
        null.add(1e-4 * (i % 7), i % 3 == 0)
    again = PairedNull.restored(json.loads(json.dumps(null.state(), allow_nan=False)))
    assert again.state() == null.state()
    for _ in range(200):
        null.add(1e-4, False)
        again.add(1e-4, False)
        null.add(2e-4, True)
        again.add(2e-4, True)
    assert again.state() == null.state()
