"""Ids and arrays come out of the journal as they went in, in few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.incident.journal_codec import digest8, pack_arrays, pack_ids, unpack_arrays, unpack_ids
from soak.plan.plan import digest

IDS = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=50) | st.lists(
    st.integers(0, 1 << 17), max_size=50
)


@given(IDS)
def test_ids_come_back(ids: list[int]) -> None:
    there = unpack_ids(pack_ids(np.array(ids, np.int32)))
    assert there.dtype == np.int32
    assert there.tolist() == ids


@pytest.mark.parametrize(("largest", "width"), [(65_535, 2), (65_536, 3), ((1 << 24) - 1, 3), (1 << 24, 4)])
def test_an_id_takes_as_few_bytes_as_it_needs(largest: int, width: int) -> None:
    assert len(pack_ids(np.full(10, largest, np.int32))) == 1 + 10 * width


@pytest.mark.parametrize("packed", [b"\x05abcde", b"\x03ab", b"\x02a"])
def test_other_bytes_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="bytes of ids"):
        unpack_ids(packed)


@given(st.dictionaries(st.text(max_size=8), st.lists(st.floats(width=64), max_size=20), max_size=4))
def test_arrays_come_back_bit_for_bit(arrays: dict[str, list[float]]) -> None:
    given_ = {name: np.array(values, np.float64) for name, values in arrays.items()}
    there = unpack_arrays(pack_arrays(given_))
    assert list(there) == list(given_)
    assert all(there[name].tobytes() == given_[name].tobytes() for name in given_)


def test_arrays_that_were_cut_are_refused() -> None:
    packed = pack_arrays({"warm": np.arange(4.0)})
    with pytest.raises(ValueError, match="3 numbers"):
        unpack_arrays(packed[:-8])


@given(IDS)
def test_the_digest_is_that_of_the_plan(ids: list[int]) -> None:
    row = np.array(ids, np.int32)
    assert digest8(row).hex() == digest(row)
