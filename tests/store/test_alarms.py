from __future__ import annotations

import pytest

from soak.detect.verdict import Alarm, Verdict
from soak.runners.faults import FAULTS
from soak.store.alarms import Ack, AckKind, StoredAlarm, ack_of, decisions, utc

NOW = 1_800_000_000.0
FAULT = FAULTS[0].name
STREAM = "shared-prefix/1024/prefill"


def stored(name: str = "a1", ack: Ack | None = None, stream: str = STREAM, server: str = "f") -> StoredAlarm:
    alarm = Alarm(Verdict.CORRUPT, "absolute", stream, "shared-prefix", f"words of {name}", (1, 2))
    return StoredAlarm(name, server, NOW, alarm, ack)


def test_what_a_person_may_say() -> None:
    assert ack_of(now_s=NOW) == Ack(AckKind.ACK, NOW)
    assert ack_of(now_s=NOW, known=FAULT, by=" Ada\n L. ").by == "Ada L."
    until = ack_of(now_s=NOW, until_s=NOW + 60)
    assert until.mutes(NOW + 59) and not until.mutes(NOW + 60)
    assert ack_of(now_s=NOW, known=FAULT).mutes(NOW + 1e9)
    assert not ack_of(now_s=NOW).mutes(NOW)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"known": "teapot"}, f"unknown fault 'teapot'; known: .*{FAULT}"),
        ({"known": FAULT, "until_s": NOW + 1}, "give one of them"),
        ({"until_s": NOW - 1}, "is past"),
        ({"until_s": float("inf")}, "give a time to come"),
        ({"until_s": float("nan")}, "give a time to come"),
        ({"by": "x" * 101}, "at most 100"),
        ({"by": "\x1b[2J"}, "printable"),
    ],
)
def test_what_makes_no_sense_is_said(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ack_of(now_s=NOW, **given)  # type: ignore[arg-type]


def test_a_mute_holds_for_its_stream_and_server_and_ends() -> None:
    mute = ack_of(now_s=NOW, until_s=NOW + 60)
    alarms = [
        stored("before"),
        stored("muted", mute),
        stored("other stream", stream="long-context/1024/prefill"),
        stored("other server", server="g"),
        stored("done", ack_of(now_s=NOW)),
    ]
    assert {name: ack is mute for name, ack in decisions(alarms, NOW).items()} == {
        "before": True,
        "muted": True,
        "other stream": False,
        "other server": False,
        "done": False,
    }
    assert [ack for ack in decisions(alarms, NOW + 60).values() if ack is not None] == [alarms[-1].ack]
    assert [a.stands for a in alarms] == [True, True, True, True, False]


def test_as_plain_values() -> None:
    ack = ack_of(now_s=NOW, known=FAULT, by="ada")
    row = stored("a1", ack).as_dict(ack)
    assert (row["id"], row["acked"], row["known_fault"], row["by"]) == ("a1", "known", FAULT, "ada")
    assert row["raised_at"] == row["acked_at"] == "2027-01-15T08:00:00Z"
    assert row["until"] is None
    assert stored().as_dict(None)["acked"] == "no"
    assert stored("a1", ack).said() == f"muted as the known fault {FAULT} by ada at 2027-01-15T08:00:00Z"


@pytest.mark.parametrize("moment", [None, 1e300, float("nan"), float("inf")])
def test_times_that_no_calendar_has(moment: float | None) -> None:
    assert utc(moment) == "never"
