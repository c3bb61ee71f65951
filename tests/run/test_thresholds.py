from soak.run.thresholds import LoadFigures, LoadLimits, load_failures


def figures(**over: object) -> LoadFigures:
    plain: dict[str, object] = {
        "asked": 100,
        "delivered": 100,
        "undelivered": {},
        "outcomes": {"ok": 100},
        "ttft_p99_s": 0.5,
        "latency_p99_s": 2.0,
    }
    return LoadFigures(**{**plain, **over})  # type: ignore[arg-type]


def test_good_load_has_no_failures() -> None:
    assert load_failures(figures(), LoadLimits(ttft_p99_s=1, latency_p99_s=3)) == []
    assert load_failures(figures(delivered=95), LoadLimits()) == []


def test_each_limit_has_its_line() -> None:
    lines = load_failures(
        figures(
            delivered=90,
            undelivered={"in-flight-cap": 10},
            outcomes={"ok": 80, "timed_out": 8, "rejected": 2},
        ),
        LoadLimits(ttft_p99_s=0.1, latency_p99_s=0.1),
    )
    assert len(lines) == 4
    assert "90 of 100" in lines[0]
    assert "10 by in-flight-cap" in lines[0]
    assert "10 of 90" in lines[1]
    assert "8 timed_out" in lines[1]
    assert "thresholds.ttft_p99: 0.500 s" in lines[2]


def test_what_was_sent_and_never_answered_was_not_delivered() -> None:
    assert load_failures(figures(outcomes={"ok": 96}), LoadLimits()) == []
    (line,) = load_failures(figures(outcomes={"ok": 90}), LoadLimits())
    assert "90 of 100" in line
    assert "10 not answered by the end" in line


def test_no_load_is_no_failure_of_load() -> None:
    assert load_failures(figures(asked=0, delivered=0, outcomes={}, ttft_p99_s=None), LoadLimits()) == []
