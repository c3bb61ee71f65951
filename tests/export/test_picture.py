from hypothesis import given
from hypothesis import strategies as st

from soak.export.picture import picture


def test_a_lost_state_is_a_cliff_at_the_boundary() -> None:
    lines = picture([5.0, 0.5, 0.05, 0.0, 0.0])
    assert lines[0].endswith("┤▆")
    assert lines[1].endswith("┤█▆")
    assert lines[2].endswith("┤██▆")
    assert "nats" in lines[-2]


def test_agreement_draws_nothing() -> None:
    assert all(line.endswith("┤") for line in picture([0.0] * 20)[:-2])
    assert picture([]) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 200))
def test_every_value_fits(d: list[float], width: int) -> None:
    for line in picture(d, width)[:-2]:
        assert len(line) <= 10 + width
