from hypothesis import given
from hypothesis import strategies as st

from soak.sglang.allowance import Allowance


def test_the_token_budget_is_a_bucket_of_ten_seconds() -> None:
    now = [0.0]
    bucket = Allowance(100, lambda: now[0])
    assert bucket.take(1000)
    assert not bucket.take(1)
    now[0] = 5.0
    assert bucket.take(500)
    assert not bucket.take(1)
    now[0] = 15.0
    assert bucket.take(10**6)  # more than the bucket holds passes when it is full


def test_what_probes_spent_keeps_everybody_waiting() -> None:
    now = [0.0]
    bucket = Allowance(100, lambda: now[0])
    bucket.charge(1500)
    assert bucket.overdrawn
    assert not bucket.take(1)
    now[0] = 5.0
    assert bucket.overdrawn
    now[0] = 6.0
    assert not bucket.overdrawn
    assert bucket.take(100)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500), st.booleans()), max_size=60))
def test_never_more_than_the_rate_and_one_bucket(steps: list[tuple[float, int, bool]]) -> None:
    now, spent = [0.0], 0
    bucket = Allowance(100, lambda: now[0])
    for wait, tokens, by_probe in steps:
        now[0] += wait
        if by_probe:
            if not bucket.overdrawn:
                bucket.charge(tokens)
                spent += tokens
        elif bucket.take(tokens):
            spent += tokens
    assert spent <= 1000 + 100 * now[0] + 500  # a probe may overdraw by what it costs


def test_no_rate_is_no_limit() -> None:
    assert Allowance(None).take(10**9)
    assert not Allowance(None).overdrawn
