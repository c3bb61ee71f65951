"""One probe from victim to result, on a toy server whose cache can be spoiled in one way at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.oracle.prober import PassSeen, Prober, ProbeSettings, Standalone
from soak.oracle.victims import Victim, Victims
from soak.plan.geometry import Geometry
from soak.plan.item import WrittenBy
from soak.sglang.exchange import Answer, Outcome, TokenIds
from tests.oracle.toy import ToySession, logprob

SETTINGS = ProbeSettings(tail=20, amnesia_per_mille=0, control_per_mille=0, repeat_per_mille=0)


class Asked:
    """Detectors that ask for a repeat, or do not."""

    def __init__(self, repeat: str | None = None, cold: bool = False) -> None:
        self.repeat, self.cold = repeat, cold

    def wants_cold_repeat(self) -> bool:
        return self.cold

    def wants_repeat(self, result: ProbeResult) -> str | None:
        return self.repeat


def ids(seed: int, n: int) -> TokenIds:
    return np.random.default_rng(seed).integers(10, 900, n, dtype=np.int32)


def victim(n: int = 100, generated: int = 0) -> Victim:
    return Victim(
        ids=ids(1, n),
        prompt_len=n - generated,
        shape="shared-prefix",
        written_by=WrittenBy.DECODE if generated else WrittenBy.PREFILL,
        index=7,
        step=0,
        part=0,
        written_s=0.0,
    )


def prober(
    session: ToySession,
    held: Victim,
    settings: ProbeSettings = SETTINGS,
    asked: Asked | None = None,
    on_pass: Callable[[PassSeen], None] = lambda _: None,
) -> Prober:
    victims = Victims(1)
    victims.add(held)
    session.cached[held.namespace] = [held.ids.tobytes()]
    return Prober(
        session,  # type: ignore[arg-type]
        victims,
        asked or Asked(),
        Geometry(context_len=1000),
        settings,
        seed=1,
        nonce=2,
        on_pass=on_pass,
    )


async def probe(
    session: ToySession,
    held: Victim | None = None,
    settings: ProbeSettings = SETTINGS,
    asked: Asked | None = None,
) -> ProbeResult:
    result = await prober(session, held or victim(), settings, asked).probe(1)
    assert result is not None
    return result


async def test_a_healthy_cache_agrees_to_the_last_bit_from_one_past_the_boundary() -> None:
    result = await probe(ToySession())
    assert result.valid
    assert result.resume_boundary == 100
    assert result.warm.shape == (19,)
    assert result.divergence is not None
    assert result.divergence.zero
    assert result.victim_index == 7
    assert result.tokens_spent > 0


async def test_a_spoiled_hit_shows() -> None:
    session = ToySession()
    session.corrupt = lambda namespace, cached: -0.5 if namespace is None else 0.0
    result = await probe(session)
    assert result.divergence is not None
    assert result.divergence.max_abs == pytest.approx(0.5)
    assert result.divergence.onset == 1


async def test_an_evicted_victim_is_no_pass() -> None:
    session = ToySession()
    held = victim()
    asking = prober(session, held)
    session.cached.clear()
    result = await asking.probe(1)
    assert result is not None
    assert result.outcome is ProbeOutcome.EVICTED
    assert await asking.probe(2) is None  # and it is not asked about again


async def test_eviction_between_locate_and_warm() -> None:
    session = ToySession()

    def forget(fields: dict[str, object]) -> None:
        if fields.get("logprob_start_len") == 100 and fields.get("extra_key") is None:
            session.cached.clear()

    session.fail = forget
    assert (await probe(session)).outcome is ProbeOutcome.EVICTED


async def test_a_moved_boundary_is_invalid() -> None:
    session = ToySession()

    def shorten(fields: dict[str, object]) -> None:
        if fields.get("logprob_start_len") == 100 and fields.get("extra_key") is None:
            session.cached[None] = [victim().ids[:60].tobytes()]

    session.fail = shorten
    result = await probe(session)
    assert result.outcome is ProbeOutcome.BOUNDARY_MOVED
    assert "60" in result.detail
    assert "100" in result.detail


async def test_a_hit_on_the_cold_side_is_invalid() -> None:
    session = ToySession()
    session.cold_hits = True
    assert (await probe(session)).outcome is ProbeOutcome.COLD_HIT


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer("r", Outcome.TIMED_OUT, "no end after 1 s"), ProbeOutcome.REQUEST_FAILED),
        (Answer("r", Outcome.SERVER_ERROR, "500"), ProbeOutcome.REQUEST_FAILED),
        (Answer("r", Outcome.INVALID_LOGPROBS, "entry 3 is null"), ProbeOutcome.NON_FINITE),
        (Answer("r", Outcome.INVALID_LOGPROBS, "3 logprobs for 4 ids"), ProbeOutcome.BROKEN_INVARIANT),
        (Answer("r", Outcome.MALFORMED, "not JSON"), ProbeOutcome.REQUEST_FAILED),
        (Answer("r", Outcome.MALFORMED, "of 3 ids", breaks_invariant=True), ProbeOutcome.BROKEN_INVARIANT),
    ],
)
async def test_failed_passes_name_themselves(answer: Answer, outcome: ProbeOutcome) -> None:
    session = ToySession()
    session.fail = lambda fields: answer if fields.get("extra_key") else None
    result = await probe(session)
    assert result.outcome is outcome
    assert "cold pass" in result.detail
    assert answer.detail in result.detail


async def test_a_missing_logprob_is_a_broken_invariant() -> None:
    session = ToySession()
    real = session.generate

    async def short(prompts: object, **fields: object) -> tuple[Answer, ...]:
        answers = await real(prompts, **fields)  # type: ignore[arg-type]
        answers[0].input_logprobs = answers[0].input_logprobs[:-1]
        return answers

    session.generate = short  # type: ignore[method-assign]
    assert (await probe(session)).outcome is ProbeOutcome.BROKEN_INVARIANT


async def test_controls_share_the_boundary_and_live_apart() -> None:
    session = ToySession()
    session.corrupt = lambda namespace, cached: -0.25 if namespace is not None else 0.0
    settings = ProbeSettings(tail=20, amnesia_per_mille=0, control_per_mille=1000, repeat_per_mille=0)
    result = await probe(session, settings=settings)
    assert result.divergence is not None
    assert result.divergence.zero
    assert result.control is not None
    assert result.control.max_abs == pytest.approx(0.25)  # its own hit, in its own namespace
    namespaces = [r["extra_key"] for r in session.requests if r["extra_key"]]
    assert len(set(namespaces)) == 3  # probe's cold; control written and read in one; control's cold


async def test_controls_of_decode_generate_for_themselves() -> None:
    session = ToySession()
    settings = ProbeSettings(tail=20, amnesia_per_mille=0, control_per_mille=1000, repeat_per_mille=0)
    result = await probe(session, victim(100, generated=30), settings)
    assert result.kind is ResumeKind.DECODE
    assert result.control is not None, result.control_note
    assert result.control.zero
    writes = [r for r in session.requests if r.get("max_new_tokens") == 30]
    assert len(writes) == 1
    assert len(writes[0]["ids"]) == 70  # type: ignore[arg-type]


async def test_a_boundary_inside_the_prompt_rests_on_prefill() -> None:
    session = ToySession()
    held = victim(100, generated=30)
    asking = prober(session, held)
    session.cached[None] = [held.ids[:70].tobytes()]
    result = await asking.probe(1)
    assert result is not None
    assert result.kind is ResumeKind.PREFILL


async def test_amnesia_scores_a_cold_continuation_with_and_without_the_far_context() -> None:
    settings = ProbeSettings(
        amnesia_per_mille=1000, control_per_mille=0, repeat_per_mille=0, kept_context=10, continuation=24
    )
    session = ToySession()
    result = await probe(session, settings=settings)
    assert result.amnesia is not None
    assert result.amnesia.tokens == 23  # resumed at the victim's end: the first of 24 has no logprob
    assert result.amnesia.ratio in (None, 0.0)
    (blank,) = [r for r in session.requests if len(r["ids"]) == 34]  # type: ignore[arg-type]
    assert blank["logprob_start_len"] == 9
    (written,) = [r for r in session.requests if r.get("max_new_tokens") == 24]
    assert written["temperature"] == 1.0
    assert written["extra_key"] is not None  # generated cold


async def test_a_confirming_pair_is_run_when_asked() -> None:
    session = ToySession()
    session.corrupt = lambda namespace, cached: -0.5 if namespace is None else 0.0
    result = await probe(session, asked=Asked("looks bad"))
    assert result.confirmation is not None
    assert result.confirmation.max_abs == pytest.approx(0.5)
    assert result.cold_repeat is not None
    assert result.cold_repeat.zero


async def test_cold_repeats_are_run_while_they_are_missing() -> None:
    result = await probe(ToySession(), asked=Asked(cold=True))
    assert result.cold_repeat is not None
    assert result.confirmation is None


async def test_the_served_pass_is_compared_once() -> None:
    session = ToySession()
    held = victim(100, generated=30)
    held.served = np.array([logprob(held.ids[:i].tobytes(), int(held.ids[i])) for i in range(70, 100)])
    asking = prober(session, held)
    first, second = await asking.probe(1), await asking.probe(2)
    assert first is not None
    assert first.served is not None
    assert first.served.zero
    assert first.served.tokens == 30
    assert second is not None
    assert second.served is None


async def test_of_a_long_generation_the_served_pass_is_compared_as_far_as_scoring_goes() -> None:
    session = ToySession()
    held = victim(100, generated=40)
    held.served = np.array([logprob(held.ids[:i].tobytes(), int(held.ids[i])) for i in range(60, 100)])
    settings = ProbeSettings(
        tail=20, max_scored=25, amnesia_per_mille=0, control_per_mille=0, repeat_per_mille=0
    )
    result = await probe(session, held, settings)
    assert result.served is not None
    assert result.served.zero
    assert result.served.tokens == 25


@pytest.mark.parametrize("extra", ["repeat", "blank"])
async def test_a_failed_pass_beside_the_comparison_takes_nothing_from_it(extra: str) -> None:
    session = ToySession()
    session.corrupt = lambda namespace, cached: -0.5 if namespace is None else 0.0
    cold = 0

    def fail(fields: dict[str, object]) -> Answer | None:
        nonlocal cold
        cold += fields.get("logprob_start_len") == 100 and fields.get("extra_key") is not None
        blank = fields.get("logprob_start_len") == SETTINGS.kept_context - 1
        lost = blank if extra == "blank" else cold == 2
        return Answer("r", Outcome.TIMED_OUT, "no end after 1 s") if lost else None

    session.fail = fail
    settings = ProbeSettings(
        tail=20,
        amnesia_per_mille=1000 if extra == "blank" else 0,
        control_per_mille=0,
        repeat_per_mille=1000,
        kept_context=SETTINGS.kept_context,
    )
    result = await probe(session, victim(200 if extra == "blank" else 100), settings)
    assert result.valid
    assert result.divergence is not None
    assert result.divergence.max_abs == pytest.approx(0.5)
    assert "no end after 1 s" in result.detail


async def test_a_long_victim_is_scored_from_the_boundary_only_so_far() -> None:
    session = ToySession()
    held = victim(600)
    asking = prober(session, held, ProbeSettings(tail=20, max_scored=50, amnesia_per_mille=0))
    session.cached[None] = [held.ids[:300].tobytes()]
    result = await asking.probe(1)
    assert result is not None
    assert result.resume_boundary == 300
    assert result.warm.shape == (50,)


async def test_standalone_controls_of_both_kinds() -> None:
    session = ToySession()
    asking = prober(session, victim(100, generated=30))
    made = await asking.control(1, ResumeKind.DECODE)
    assert isinstance(made, Standalone)
    assert made.control.divergence is not None, made.control.note
    assert made.control.divergence.zero
    made = await asking.control(1, ResumeKind.PREFILL)  # nobody wrote that way, but its prompt was prefilled
    assert isinstance(made, Standalone)
    assert made.control.cached == 70
    made = await prober(session, victim(100)).control(2, ResumeKind.PREFILL)
    assert isinstance(made, Standalone)
    assert made.control.cached == 100


async def test_a_control_of_decode_scores_no_more_than_its_probe() -> None:
    session = ToySession()
    held = victim(400, generated=200)
    settings = ProbeSettings(
        tail=20, max_scored=50, amnesia_per_mille=0, control_per_mille=1000, repeat_per_mille=0
    )
    asking = prober(session, held, settings)
    session.cached[None] = [held.ids[:250].tobytes()]
    result = await asking.probe(1)
    assert result is not None
    assert result.kind is ResumeKind.DECODE
    assert result.divergence is not None
    assert result.control is not None, result.control_note
    assert result.control.tokens == result.divergence.tokens == 50


@pytest.mark.parametrize(("length", "generated"), [(995, 0), (995, 30), (999, 30)])
async def test_standalone_controls_near_the_context_limit(length: int, generated: int) -> None:
    session = ToySession()
    kind = ResumeKind.DECODE if generated else ResumeKind.PREFILL
    made = await prober(session, victim(length, generated)).control(1, kind)
    assert isinstance(made, Standalone)
    assert all(len(r["ids"]) <= 999 for r in session.requests)  # type: ignore[arg-type]
    if length < 999:
        assert made.control.divergence is not None, made.control.note
    else:  # the last token that was generated is never in the cache: none is left to score
        assert "nothing left to score" in made.control.note


@pytest.mark.parametrize(("places", "resumed"), [((64,), 64), ((37, 90), 90), ((), None)])
async def test_a_control_by_itself_resumes_wherever_states_were_left(
    places: tuple[int, ...], resumed: int | None
) -> None:
    session = ToySession()
    anywhere = session.hit

    def hit(ids: TokenIds, namespace: str | None, limit: int) -> int:
        longest = anywhere(ids, namespace, limit)
        return max((place for place in places if place <= longest), default=0)

    session.hit = hit  # type: ignore[method-assign]
    made = await prober(session, victim(100)).control(2, ResumeKind.PREFILL)
    assert isinstance(made, Standalone)
    if resumed is None:
        assert made.control.divergence is None
        assert "resumed at 0" in made.control.note
    else:
        assert made.control.cached == resumed
        assert made.control.divergence is not None
        assert made.control.divergence.zero
        assert made.control.divergence.tokens == 100 + SETTINGS.tail - resumed - 1
    assert len([r for r in session.requests if not r.get("return_logprob")]) == 1  # written once


async def test_a_hard_alarm_in_a_control_is_an_alarm() -> None:
    session = ToySession()
    asking = prober(session, victim())
    session.fail = lambda fields: (
        Answer("r", Outcome.INVALID_LOGPROBS, "entry 3 is null") if fields.get("logprob_start_len") else None
    )
    made = await asking.control(1, ResumeKind.PREFILL)
    assert isinstance(made, ProbeResult)
    assert made.outcome is ProbeOutcome.NON_FINITE


async def test_numbers_repeat_a_probe_exactly() -> None:
    one, two = ToySession(), ToySession()
    await probe(one)
    await probe(two)
    asked = [[(r["extra_key"], bytes(np.asarray(r["ids"]))) for r in s.requests] for s in (one, two)]
    assert asked[0] == asked[1]


async def test_listed_candidates_bound_the_divergence_of_the_whole_distribution() -> None:
    """Two nats off: cold is q e^2 where warm is q, and all else shares what is left, on both sides alike."""
    session = ToySession()
    session.corrupt = lambda namespace, cached: -2.0 if namespace is None else 0.0
    settings = dataclasses.replace(SETTINGS, top_k=3)
    result = await prober(session, victim(), settings).probe(1)
    assert result is not None
    assert result.coarsened is not None
    assert result.coarsened.tokens == len(result.cold)
    p, q = np.exp(result.cold), np.exp(result.warm)
    true = p * (result.cold - result.warm) + (1 - p) * (np.log1p(-p) - np.log1p(-q))
    assert result.coarsened.mean == pytest.approx(true.mean(), abs=1e-4)
    assert result.coarsened.largest == pytest.approx(true.max(), abs=1e-4)
    listing = [r for r in session.requests if r.get("top_logprobs_num")]
    assert len(listing) == 2  # warm and cold, and no other pass


async def test_without_candidates_there_is_no_such_figure() -> None:
    session = ToySession()
    result = await prober(session, victim()).probe(1)
    assert result is not None
    assert result.valid
    assert result.coarsened is None
    assert not any(r.get("top_logprobs_num") for r in session.requests)


async def test_a_pass_names_the_tokens_that_followed_its_victims() -> None:
    held, seen = victim(), list[PassSeen]()
    assert await prober(ToySession(), held, on_pass=seen.append).probe(1)
    scored = [one for one in seen if one.sent.what in {"warm", "cold"}]
    assert len(scored) == 2
    for one in scored:
        assert one.victim is held
        tail = one.tail.ids(1, 2, Geometry(context_len=1000))
        assert np.array_equal(one.sent.ids, np.concatenate([held.ids, tail]))


@pytest.mark.parametrize("retracted", [False, True])
async def test_only_a_resume_that_cannot_be_copied_says_so(retracted: bool) -> None:
    held = victim(generated=20)
    held.retractions = int(retracted)
    result = await probe(ToySession(), held)
    assert result.valid
    assert (result.kind is ResumeKind.RETRACTED) is retracted
    assert ("cannot be brought about at will" in result.control_note) is retracted


@pytest.mark.parametrize(("length", "asked"), [(64, False), (65, True)])
async def test_what_is_cut_must_be_longer_than_what_is_kept(length: int, asked: bool) -> None:
    kept = dataclasses.replace(SETTINGS, amnesia_per_mille=1000, kept_context=32)
    result = await probe(ToySession(), victim(length), kept)
    assert result.valid
    assert (result.amnesia is not None) is asked


@pytest.mark.parametrize(("count", "compared"), [(1, False), (2, True)])
async def test_two_served_logprobs_are_enough_to_compare(count: int, compared: bool) -> None:
    held = victim(generated=20)
    held.served = np.full(count, -1.0)
    result = await probe(ToySession(), held)
    assert result.valid
    assert (result.served is not None) is compared
