from __future__ import annotations

import pytest

from soak.run.moment import moment_s

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("8h", NOW + 28_800),
        ("2d", NOW + 172_800),
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T09:00+01:00", NOW),
        (" 2027-01-15 08:00:00+00:00 ", NOW),
    ],
)
def test_times_and_durations(text: str, moment: float) -> None:
    assert moment_s(text, NOW) == moment


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tomorrow", "neither a time such as 2026-12-01T08:00Z nor a duration"),
        ("", "neither"),
        ("2027-01-15T08:00:00", "has no zone"),
        ("2027-01-15", "has no zone"),
    ],
)
def test_what_is_neither(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        moment_s(text, NOW)
