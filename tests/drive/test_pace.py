from soak.drive.pace import Pace
from soak.plan.item import Abort, AbortBy
from soak.sglang.exchange import Answer, Outcome


def answer(prefill_s: float, token_s: float, outcome: Outcome = Outcome.OK) -> Answer:
    return Answer(
        "r",
        outcome,
        sent_s=10.0,
        first_token_s=10.0 + prefill_s,
        finished_s=10.0 + prefill_s + 9 * token_s,
        prompt_tokens=1200,
        cached_tokens=200,
        completion_tokens=10,
    )


def test_an_abort_is_timed_by_what_prefills_took_lately() -> None:
    pace = Pace()
    for _ in range(100):
        pace.observe(answer(2.0, 0.5))
    half = pace.delay_s(Abort(AbortBy.REQUEST, prefill_per_mille=500), 1000)
    assert abs(half - 1.0) < 0.01
    third_token = pace.delay_s(Abort(AbortBy.REQUEST, after_tokens=3), 1000)
    assert abs(third_token - 3.5) < 0.01


def test_failures_and_answers_without_a_first_token_teach_nothing() -> None:
    pace = Pace()
    before = pace.delay_s(Abort(AbortBy.REQUEST, prefill_per_mille=900), 4000)
    pace.observe(answer(99.0, 9.0, Outcome.ABORTED))
    unstreamed = answer(99.0, 9.0)
    unstreamed.first_token_s = None
    pace.observe(unstreamed)
    assert pace.delay_s(Abort(AbortBy.REQUEST, prefill_per_mille=900), 4000) == before


def test_prompts_that_were_cached_do_not_make_prefill_look_slow() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(answer(1.0, 0.1))
        hit = answer(0.1, 0.1)
        hit.cached_tokens = hit.prompt_tokens - 1
        pace.observe(hit)
    delay = pace.delay_s(Abort(AbortBy.REQUEST, prefill_per_mille=1000), 1000)
    assert 0.9 < delay < 1.3


def test_an_answer_of_one_token_teaches_without_being_streamed() -> None:
    pace = Pace()
    for _ in range(100):
        whole = answer(2.0, 0.0)
        whole.first_token_s, whole.completion_tokens = None, 1
        pace.observe(whole)
    assert abs(pace.delay_s(Abort(AbortBy.REQUEST, prefill_per_mille=1000), 1000) - 2.0) < 0.01
