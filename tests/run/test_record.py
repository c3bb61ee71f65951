"""What a run is told goes everywhere: here, what load alone can show."""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry

from soak import config as configs
from soak.detect.verdict import Verdict
from soak.drive.observation import Observation
from soak.plan.geometry import Geometry
from soak.plan.item import Item, WrittenBy
from soak.run.record import Record
from soak.sglang.exchange import Answer, Outcome


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
