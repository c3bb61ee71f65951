"""A salt keeps the pattern of token ids and nothing of the ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from soak.incident.salt import salt
from soak.sglang.exchange import TokenIds

NUMBERS = st.integers(0, (1 << 62) - 1)
IDS = st.lists(st.integers(0, 1200), max_size=50).map(lambda ids: np.array(ids, np.int32))


@given(NUMBERS, st.integers(0, 500), st.integers(1, 500))
def test_it_is_a_bijection_of_the_ordinary_ids(number: int, low: int, size: int) -> None:
    everything = np.arange(0, low + size + 10, dtype=np.int32)
    salted = salt(number, (low, low + size))(everything)
    assert np.array_equal(np.sort(salted), everything)
    special = (everything < low) | (everything >= low + size)
    assert np.array_equal(salted[special], everything[special])


@given(NUMBERS, IDS, IDS)
def test_prompts_share_as_much_as_before(number: int, one: TokenIds, other: TokenIds) -> None:
    salted = salt(number, (10, 1000))
    n = min(len(one), len(other))
    assert np.array_equal(one[:n] == other[:n], salted(one)[:n] == salted(other)[:n])
    assert salted(one).dtype == np.int32


def test_the_number_alone_decides_and_0_changes_nothing() -> None:
    ids = np.arange(1000, dtype=np.int32)
    assert np.array_equal(salt(0, (10, 1000))(ids), ids)
    assert np.array_equal(salt(5, (10, 1000))(ids), salt(5, (10, 1000))(ids))
    assert not np.array_equal(salt(5, (10, 1000))(ids), salt(6, (10, 1000))(ids))
    # the same on every machine
    assert salt(5, (10, 1000))(ids)[10:14].tolist() == [539, 775, 326, 271]
