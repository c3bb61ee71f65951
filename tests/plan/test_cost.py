from soak.plan.cost import ProbeTerms, cost
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.plan.spec import ResolvedSpec

TERMS = ProbeTerms(rate=4, tail=64, prefill_share=0.5, pool_share_per_minute=0.5, controls_needed=60)


def test_prefill_adds_up_by_hand() -> None:
    spec = ResolvedSpec(arrivals="constant", rate="1", weights=(("shared-prefix", 1),))
    plan = Plan(1, spec)
    told = cost(plan, TERMS)
    tokens = sum(p.length for i in range(1000) for item in plan.items(i) for p in item.prompts)
    assert abs(told.prefill_tokens - tokens / 999 * 3600) < 1
    assert abs(told.prompts - 1000 / 999 * 3600) < 1


def test_a_small_pool_leaves_few_probes_and_says_so() -> None:
    small = ResolvedSpec(geometry=Geometry(max_total_tokens=8192))
    large = ResolvedSpec(geometry=Geometry(max_total_tokens=8_000_000))
    few, many = cost(Plan(1, small), TERMS), cost(Plan(1, large), TERMS)
    assert few.probes_per_minute < many.probes_per_minute
    assert few.minutes_to_calibrate > many.minutes_to_calibrate
    assert f"{few.probes_per_minute:.1f}" in few.words()


def test_follow_ups_are_charged_with_what_comes_before_them() -> None:
    spec = ResolvedSpec(arrivals="constant", rate="1", weights=(("decode-seeded", 1),))
    plan = Plan(1, spec)
    first, second = plan.items(0)
    assert cost(plan, TERMS).longest >= (
        first.prompts[0].length + first.max_new_tokens + second.prompts[0].length + second.max_new_tokens
    )
