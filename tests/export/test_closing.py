from __future__ import annotations

from dataclasses import replace

import pytest

from soak.detect.verdict import DetectorReport, Verdict
from soak.export.closing import VERDICT_SENTENCES, closing_words, counts, nats, seconds, share
from soak.export.summary import LoadCount
from soak.export.tally import Tally
from tests.export.samples import FACTS, report, summary


def test_the_verdict_comes_first_with_its_reasons() -> None:
    words = closing_words(summary(Verdict.CORRUPT, exit_code=1)).splitlines()
    assert words[0] == f"CORRUPT: {VERDICT_SENTENCES['CORRUPT']}."
    assert words[1] == "  - 20 valid probes"


def test_every_verdict_has_a_sentence() -> None:
    assert set(VERDICT_SENTENCES) == {verdict.value for verdict in Verdict}


def test_figures_and_how_to_go_on() -> None:
    words = closing_words(summary(Verdict.CORRUPT, exit_code=1))
    assert "CORRUPT by absolute in shared-prefix/512/prefill: k3 2.1" in words
    assert "resumes from prefill: tolerance mode, ready, p0 0.18" in words
    assert "20 valid of 23 (90.9% of those whose victim was still cached)" in words
    assert "alarms of their own: 1 non finite" in words
    assert "confirmed         7x       5" in words
    assert "retraction: no pressure yet" in words
    assert "21 of 22 prompts (95.4%) delivered in 90 s" in words
    assert "not delivered: 1 server busy" in words
    assert "soak run --target http://127.0.0.1:30000 --seed 7" in words
    assert words.endswith("Exit code 1 (suspect or corrupt)")


def test_the_coarsened_divergence_is_told_where_candidates_were_listed() -> None:
    assert "KL of warm from cold, at least" in closing_words(summary(Verdict.CORRUPT))
    found = summary(Verdict.CORRUPT)
    found["coarsened_kl"] = {shape: {"count": 0} for shape in found["coarsened_kl"]}
    assert "KL of warm" not in closing_words(found)


@pytest.mark.parametrize(("acked", "told"), [("no", "Z)"), ("known", "Z, muted)")])
def test_an_alarm_says_under_which_id_it_is_acknowledged(acked: str, told: str) -> None:
    (alarm,) = report(Verdict.CORRUPT).alarms
    facts = {"id": "3fa9c1d2", "raised_at": "2027-01-15T08:00:00Z", "acked": acked}
    found = summary(Verdict.CORRUPT, alarm_facts={alarm: facts})
    (row,) = found["detector"]["alarms"]
    assert (row["id"], row["acked"], row["probes"]) == ("3fa9c1d2", acked, [4, 9])
    words = " ".join(closing_words(found).split())
    assert f"k3 2.1 (alarm 3fa9c1d2, raised 2027-01-15T08:00:00{told}" in words


JOURNAL = {"path": "/tmp/it is/journal.sqlite", "rows": 900, "dropped": 0, "bytes": 300_000, "failing": ""}


def test_an_incident_says_how_to_look_into_it_and_how_to_replay_it() -> None:
    (alarm,) = report(Verdict.CORRUPT).alarms
    facts = {"id": "3fa9c1d2", "raised_at": "2027-01-15T08:00:00Z", "acked": "no"}
    found = summary(Verdict.CORRUPT, alarm_facts={alarm: facts}, journal=JOURNAL)
    assert found["incidents"] == ["3fa9c1d2"]
    assert found["journal"]["rows"] == 900
    words = closing_words(found)
    journal = "--journal '/tmp/it is/journal.sqlite'"
    assert f"soak incidents show 3fa9c1d2 {journal}" in words
    assert f"soak replay --incident 3fa9c1d2 {journal} --target http://127.0.0.1:30000" in words
    assert "lost" not in words


def test_without_a_journal_no_incident_is_promised() -> None:
    (alarm,) = report(Verdict.CORRUPT).alarms
    facts = {"id": "3fa9c1d2", "raised_at": "2027-01-15T08:00:00Z", "acked": "no"}
    found = summary(Verdict.CORRUPT, alarm_facts={alarm: facts})
    assert (found["incidents"], found["journal"]) == ([], None)
    assert "soak incidents" not in closing_words(found)


def test_what_the_journal_lost_is_said() -> None:
    lost = JOURNAL | {"dropped": 1234, "failing": "database or disk is full"}
    assert "The journal lost 1,234 rows (database or disk is full)" in closing_words(summary(journal=lost))


def test_the_callers_own_replay_command_is_used() -> None:
    words = closing_words(summary(facts=replace(FACTS, replay_command="soak demo --seed 7")))
    assert "soak demo --seed 7" in words
    assert "soak run" not in words


def test_simulator_and_interruption_are_said() -> None:
    words = closing_words(summary(facts=replace(FACTS, simulator=True), interrupted=True, exit_code=130))
    assert "simulator" in words
    assert "INTERRUPTED" in words
    assert "Exit code 130 (interrupted)" in words


def test_a_run_that_saw_nothing_still_reads() -> None:
    words = closing_words(
        summary(
            Verdict.VACUOUS,
            exit_code=3,
            report=DetectorReport(Verdict.CALIBRATING),
            coverage=(),
            tally=Tally(),
            load=LoadCount(),
        )
    )
    assert words.startswith("VACUOUS: nothing bad was seen")
    assert "0 of 0 prompts (-) delivered" in words
    assert "nan" not in words.lower() and "None" not in words


def test_a_servers_words_cannot_steer_the_terminal() -> None:
    words = closing_words(summary(reasons=["the server said \x1b[2J\x1b]0;pwned\x07 and \r more"]))
    assert all(c.isprintable() or c == "\n" for c in words)


def test_lines_fit_a_page() -> None:
    words = closing_words(summary(Verdict.CORRUPT, reasons=["a long reason, " * 40]))
    assert max(map(len, words.splitlines())) <= 100
    assert " ".join(words.split()).count("a long reason") == 40


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0 ms"), (0.0123, "12.3 ms"), (1.0, "1 s"), (90.0, "90 s"), (5400.0, "90 min")],
)
def test_seconds(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


def test_small_words() -> None:
    assert (nats(None), nats(0.0), nats(0.00123)) == ("-", "0", "0.0012")
    assert (share(None), share(1.0), share(0.9999), share(0.57)) == ("-", "100%", "99.9%", "57%")
    assert counts({"cold_hit": 1, "evicted": 3, "none": 0}) == "3 evicted, 1 cold hit"
