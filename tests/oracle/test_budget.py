from collections.abc import Callable

import pytest

from soak.oracle.budget import ProbeBudget
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.sglang.allowance import Allowance


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def result(tokens: int, outcome: ProbeOutcome = ProbeOutcome.VALID) -> ProbeResult:
    return ProbeResult(1, "a", ResumeKind.PREFILL, outcome, tokens_spent=tokens)


def budget(
    clock: Clock,
    share: float | None = None,
    pool: float | None = None,
    load: Callable[[], int] = lambda: 0,
) -> ProbeBudget:
    return ProbeBudget(
        5, prefill_share=share, pool_share_per_minute=pool, pool_tokens=10_000, load_tokens=load, clock=clock
    )


def test_the_pool_share_is_of_a_sliding_minute() -> None:
    clock = Clock()
    tested = budget(clock, pool=0.5)
    tested.record(result(4999))
    assert tested.short_of() == ""
    tested.record(result(1))
    assert tested.short_of() == "pool-share"
    assert tested.used_ratio() == 1.0
    clock.now = 61
    assert tested.short_of() == ""


def test_the_prefill_share_grows_with_the_load() -> None:
    load = [0]
    tested = budget(Clock(), share=0.5, load=lambda: load[0])
    tested.record(result(30_000))
    assert tested.short_of() == "prefill-share"
    load[0] = 20_000
    assert tested.short_of() == ""


def test_only_limited_budgets_are_in_use() -> None:
    assert budget(Clock()).used_ratios() == {"pool": 0.0}
    tested = ProbeBudget(
        5, prefill_share=0.5, pool_share_per_minute=0.5, pool_tokens=10_000, load_tokens=lambda: 20_000,
        allowance=Allowance(100, Clock()), clock=Clock(),
    )  # fmt: skip
    tested.record(result(1500))
    assert tested.used_ratios() == {"pool": 0.3, "prefill-share": 0.0375, "tokens-per-second": 1.5}


def test_probes_slow_down_when_they_evict_what_they_look_for() -> None:
    clock = Clock()
    tested = budget(clock, pool=0.5)
    for _ in range(60):
        tested.record(result(0, ProbeOutcome.EVICTED))
    tested.record(result(5000))
    clock.now = 61
    assert tested.short_of() == "pool-share"  # the same spending now lasts longer
    clock.now = 600
    assert tested.short_of() == ""


@pytest.mark.parametrize(
    ("evicted", "others", "slower"), [(49, 0, False), (50, 0, True), (5, 45, False), (6, 44, True)]
)
def test_over_a_tenth_of_the_last_fifty_is_what_slows_them_down(
    evicted: int, others: int, slower: bool
) -> None:
    clock = Clock()
    tested = budget(clock, pool=0.5)
    for _ in range(others):
        tested.record(result(0))
    for _ in range(evicted):
        tested.record(result(0, ProbeOutcome.EVICTED))
    tested.spend(5000)
    clock.now = 61
    assert (tested.short_of() == "pool-share") is slower


def test_probes_wait_for_the_tokens_they_share_with_load() -> None:
    clock = Clock()
    allowance = Allowance(100, clock)
    tested = ProbeBudget(
        5,
        prefill_share=None,
        pool_share_per_minute=None,
        pool_tokens=None,
        load_tokens=lambda: 0,
        allowance=allowance,
        clock=clock,
    )
    assert tested.short_of() == ""
    tested.record(result(1500))
    assert tested.short_of() == "tokens-per-second"
    assert not allowance.take(1)
    clock.now = 6
    assert tested.short_of() == ""


def test_lifted_budgets_never_wait() -> None:
    tested = budget(Clock())
    tested.record(result(10**9))
    assert tested.short_of() == ""


async def test_waiting_ends_and_keeps_the_rate() -> None:
    tested = ProbeBudget(
        1000, prefill_share=None, pool_share_per_minute=None, pool_tokens=None, load_tokens=lambda: 0
    )
    for _ in range(5):
        await tested.wait()


def test_a_rate_that_never_probes_is_refused() -> None:
    with pytest.raises(ValueError, match="never probe"):
        ProbeBudget(
            0, prefill_share=None, pool_share_per_minute=None, pool_tokens=None, load_tokens=lambda: 0
        )
