"""The grid of states, worked out from where prompts resumed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from soak.sglang.grid import Resumption, attention_only, probing_length, state_grid
from tests.sglang.small import Small


@given(st.integers(2, 1 << 20))
def test_probing_lengths_are_one_less_than_a_power_of_two(limit: int) -> None:
    length = probing_length(limit)
    assert length < limit
    assert (length + 1) & length == 0
    assert 2 * length + 1 >= limit


def resumed(kind: str, chunk: int, grid: int, written: int) -> Resumption:
    """By the rules of a server: written from nothing, left at the last token."""
    states = Small(kind=kind, chunk=chunk, state_chunk=grid)._states(0, written)
    return Resumption(written, max([0, *(n for n in states if n < written)]))


@given(st.integers(4, 10), st.integers(0, 10))
def test_any_power_of_two_up_to_the_chunk_is_found(chunk_power: int, grid_power: int) -> None:
    chunk = 1 << chunk_power
    grid = 1 << min(max(1, grid_power), chunk_power)
    lengths = (probing_length(min(chunk, 1024)), chunk + probing_length(min(chunk, 1024)))
    assert state_grid([resumed("extra_buffer", chunk, grid, n) for n in lengths], chunk) == grid


@given(st.integers(4, 14))
def test_states_at_chunk_ends_only(chunk_power: int) -> None:
    chunk = 1 << chunk_power
    lengths = (probing_length(min(chunk, 1024)), chunk + probing_length(min(chunk, 1024)))
    assert state_grid([resumed("no_buffer", chunk, 1, n) for n in lengths], chunk) == chunk


def test_the_servers_own_word_decides_where_both_explain() -> None:
    seen = [Resumption(255, 192), Resumption(383, 256 + 96)]
    assert state_grid(seen, 256) is None
    assert state_grid([Resumption(255, 192)], 256, hint=96) == 96
    assert state_grid([Resumption(255, 192)], 256) == 64
    assert state_grid([Resumption(255, 192)], 256, hint=100) == 64


def test_nothing_seen() -> None:
    assert state_grid([], 256) is None
    assert state_grid([Resumption(255, 0)], 256) is None


def test_attention_needs_no_states() -> None:
    assert attention_only([Resumption(255, 254), Resumption(600, 599)], 1)
    assert attention_only([Resumption(255, 192)], 64)
    assert not attention_only([Resumption(255, 192)], 1)
    assert not attention_only([Resumption(255, 0)], 1)
