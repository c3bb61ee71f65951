"""Traces made by hand, and what a bundle says of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.incident.about import About
from soak.incident.trace import Case, Origin, Seen, Sent, Trace
from soak.oracle.probe import ResumeKind
from soak.plan.geometry import Geometry
from soak.plan.spec import ResolvedSpec
from soak.sglang.exchange import TokenIds


def random_ids(length: int, seed: int) -> TokenIds:
    return np.random.default_rng(seed).integers(10, 1000, length).astype(np.int32)


def about(**changes: Any) -> About:
    spec = ResolvedSpec(geometry=Geometry())
    values: dict[str, Any] = {
        "seed": 7,
        "nonce": 11,
        "run_id": "0123456789ab",
        "spec": spec.as_dict(),
        "spec_digest": spec.digest(),
        "fingerprint": {"version": "0.5.17", "page_size": 1},
        "soak_version": "0.1.0",
        "alarm": {"id": "3fa9c1d2", "channel": "ceiling"},
        "evidence": "median |d| 0.7 on 3 of 20",
    }
    return About(**{**values, **changes})


@dataclass
class Script:
    """A trace written down request by request; every request lasts ``lasts_us`` unless told otherwise."""

    lasts_us: int = 5_000
    now_us: int = 0
    sent: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def send(self, *prompts: TokenIds, new: int = 1, lasts_us: int | None = None, **fields: Any) -> list[int]:
        """One request with these prompts; their places. The clock moves on by a microsecond only."""
        request = max((s.request for s in self.sent), default=-1) + 1
        places = []
        for part, ids in enumerate(prompts):
            places.append(len(self.sent))
            self.sent.append(
                Sent(
                    index=request,
                    step=0,
                    part=part,
                    origin=Origin.LOAD,
                    shape="chunked-burst",
                    request=request,
                    at_us=self.now_us,
                    sent_us=self.now_us,
                    ids=ids,
                    max_new_tokens=new,
                    **fields,
                )
            )
            ends = self.now_us + (self.lasts_us if lasts_us is None else lasts_us)
            self.seen.append(Seen("ok", ends, output_ids=random_ids(new, 7000 + len(self.sent))))
        self.now_us += 1
        return places

    def follow(self, parent: int, own: TokenIds, **fields: Any) -> list[int]:
        """A request that goes on from all that a prompt sent and got."""
        before = np.concatenate([self.sent[parent].ids, self.seen[parent].output_ids])
        return self.send(np.concatenate([before, own]), parent=parent, inherits=len(before), **fields)

    def rest(self) -> None:
        """Until everything has ended, and a little more."""
        self.now_us = max([self.now_us, *(s.finished_us for s in self.seen)]) + 1_000

    def ask(
        self,
        victim: int | None,
        *,
        decoded: bool = False,
        prefix: int | None = None,
        tail: int = 24,
        size: float = 0.3,
        ids: TokenIds | None = None,
        **fields: Any,
    ) -> Trace:
        """The trace, with a case about what ``victim`` wrote whose warm pass was ``size`` nats off."""
        if ids is None:
            assert victim is not None
            ids = self.sent[victim].ids
            if decoded:
                ids = np.concatenate([ids, self.seen[victim].output_ids])
        ids = ids[:prefix]
        cold = np.full(tail - 1, -6.0)
        case = Case(
            number=1,
            kind=ResumeKind.DECODE if decoded else ResumeKind.PREFILL,
            shape="chunked-burst",
            stream="chunked-burst/128/prefill",
            ids=np.concatenate([ids, random_ids(tail, 4242)]),
            start=len(ids),
            warm=cold - size,
            cold=cold,
            victim=victim,
            **fields,
        )
        return Trace(tuple(self.sent), tuple(self.seen), case)


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces are the same to the last bit."""

    def plain(trace: Trace) -> list[Any]:
        items: list[Any] = [*trace.sent, *trace.seen, trace.case]
        values = [getattr(item, field.name) for item in items for field in dataclasses.fields(item)]
        return [(v.dtype.str, v.tolist()) if isinstance(v, np.ndarray) else v for v in values]

    return plain(one) == plain(other)
