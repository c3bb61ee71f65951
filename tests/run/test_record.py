"""What a run is told goes everywhere: here, what load alone can show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from soak import config as configs
from soak.detect.settings import HANDFUL
from soak.detect.verdict import Verdict
from soak.drive.observation import Observation
from soak.oracle.probe import ResumeKind
from soak.oracle.victims import Victim
from soak.plan.geometry import Geometry
from soak.plan.item import Item, Prompt, Segment, WrittenBy
from soak.plan.plan import Plan
from soak.plan.shapes import SHAPES, servable
from soak.plan.spec import ResolvedSpec
from soak.plan.strict import code_of
from soak.run.record import Record
from soak.sglang.exchange import Answer, Outcome
from tests.detect.synthetic import divergence, probe


def record(geometry: Geometry | None = None) -> tuple[Record, list[str]]:
    loaded = configs.build({})
    said: list[str] = []
    made = Record(
        loaded,
        loaded.resolve(geometry or Geometry()),
        deterministic=False,
        registry=CollectorRegistry(),
        say=said.append,
    )
    return made, said


def seen(answer: Answer, n: int = 100, index: int = 0) -> Observation:
    item = Item(
        index=index,
        step=0,
        shape="decode-seeded",
        at_us=0,
        prompts=(),
        max_new_tokens=4,
        return_logprob=True,
        written_by=WrittenBy.DECODE,
    )
    return Observation(item=item, part=0, ids=np.full(n, 20, np.int32), intended_s=0.0, answer=answer)


def test_a_null_among_the_logprobs_that_load_was_served_is_an_alarm() -> None:
    tested, said = record()
    tested.observe_load(seen(Answer("r", Outcome.INVALID_LOGPROBS, "output logprob 3 of 9 is null"), index=7))
    verdict, reasons = tested.verdict()
    assert verdict is Verdict.CORRUPT
    assert "load request 7" in said[0]
    assert "non-finite" in said[0]
    assert any("non-finite" in reason for reason in reasons)


def test_a_refused_request_is_no_alarm() -> None:
    tested, said = record()
    tested.observe_load(seen(Answer("r", Outcome.REJECTED, "queue full")))
    assert tested.verdict()[0] is Verdict.CALIBRATING
    assert not said


def test_victims_are_held_for_as_long_as_the_pool_may_hold_them() -> None:
    tested, _ = record(Geometry(max_total_tokens=1000))
    for index in range(100):
        tested.observe_load(seen(Answer("r", Outcome.OK), n=100, index=index))
    assert len(tested.victims) == 20


@pytest.mark.parametrize(("step", "victims"), [(0, 0), (1, 0), (2, 1)])
def test_what_only_fills_the_pool_is_not_probed(step: int, victims: int) -> None:
    tested, _ = record()
    filler = replace(seen(Answer("r", Outcome.OK)).item, shape="abort-load", step=step)
    tested.observe_load(replace(seen(Answer("r", Outcome.OK)), item=filler))
    assert len(tested.victims) == victims


@pytest.mark.parametrize("shape", [name for name in SHAPES if servable(name, Geometry())])
def test_what_a_follow_up_resumes_from_is_asked_about(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have spoiled just that, and what was written before it is whole."""
    geometry = Geometry(chunk=256, state_grid=64)
    spec = ResolvedSpec(geometry=geometry, max_context=420, min_prompt=48, weights=((shape, 1),))
    tested, _ = record(geometry)
    planted: list[Victim] = []
    monkeypatch.setattr(tested.victims, "add", lambda victim, **_: planted.append(victim))
    for index in range(6):
        planted.clear()
        items = Plan(1, spec).items(index)
        outputs = {item.step: np.arange(item.max_new_tokens, dtype=np.int32) + 900 for item in items}
        for item in items:
            for part, prompt in enumerate(item.prompts):
                ids = np.concatenate([s.ids(1, 0, spec.geometry) for s in prompt.segments])
                answer = Answer("r", Outcome.OK, output_ids=outputs[item.step])
                tested.observe_load(replace(seen(answer), item=item, ids=ids, part=part))
        asked = [(victim.step, victim.ids[-1]) for victim in planted]
        for item in items:
            if item.parent is not None:
                assert (item.parent, outputs[item.parent][-1]) in asked


def test_what_decode_wrote_is_resumed_inside_its_prompt_too_and_the_verdict_gets_controls_for_it() -> None:
    tested, _ = record()
    tested.observe_load(seen(Answer("r", Outcome.OK, output_ids=np.full(40, 5, np.int32))))
    assert tested.lacking_controls() is ResumeKind.DECODE
    for number in range(HANDFUL):
        tested.detector.observe(probe(number, score=1e-4, kind=ResumeKind.PREFILL))
    asked = set()
    for number in range(300):
        lacking = tested.lacking_controls()
        if lacking is None:
            break
        asked.add(lacking)
        assert tested.victims.recipe(number, WrittenBy[lacking.name]) is not None
        tested.detector.add_control(lacking, divergence(1e-4 + number * 1e-7), number % 2 == 0)
    assert asked == {ResumeKind.DECODE, ResumeKind.PREFILL}


def _answered(shape: str, ids: object, part_key: int, index: int, **fields: object) -> Observation:
    prompt = Prompt((Segment("canary", part_key, 0, 40),))
    item = Item(index, 0, shape, 0, (prompt,), 16, strict=shape == "strict-json")
    answer = Answer("r", Outcome.OK, output_ids=np.asarray(ids, np.int32))
    for name, value in fields.items():
        setattr(answer, name, value)
    return Observation(item=item, part=0, ids=np.full(40, 20, np.int32), intended_s=0.0, answer=answer)


def test_a_canary_that_got_anothers_answer_is_an_alarm() -> None:
    tested, said = record()
    for index, key in enumerate((1, 2, 1, 2)):
        tested.observe_load(_answered("canary", np.arange(16) + key, key, index))
    assert not said
    tested.observe_load(_answered("canary", np.arange(16) + 2, 1, 9))
    assert tested.verdict()[0] is Verdict.CORRUPT
    assert "load request 9" in said[0]
    assert "answer of canary 2" in said[0]


def test_after_a_restart_no_canary_is_known() -> None:
    tested, said = record()
    for index, key in enumerate((1, 2, 1, 2)):
        tested.observe_load(_answered("canary", np.arange(16) + key, key, index))
    tested.another_server()
    tested.observe_load(_answered("canary", np.arange(16) + 2, 1, 9))
    assert not said


@pytest.mark.parametrize(
    ("index_of_code", "finish", "cut", "alarm"),
    [(5, "stop", None, False), (6, "stop", None, True), (5, "stop", 20, True), (5, "length", 20, False)],
)
def test_a_json_answer_must_be_its_own_requests(
    index_of_code: int, finish: str, cut: int | None, alarm: bool
) -> None:
    tested, said = record()
    text = f'{{"id":"{code_of(1, 0, index_of_code, 0)}","kind":"beta"}}'[:cut]
    tested.observe_load(_answered("strict-json", [5], 0, 5, text=text, finish_reason=finish))
    assert bool(said) is alarm
    assert (tested.verdict()[0] is Verdict.CORRUPT) is alarm
