"""The parts of a run that see every request or probe, each fed by itself with made-up work.

``prepare`` makes the work of a segment, which nobody times; ``work`` is the part's own, and returns when all
of it is done, whatever thread does it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.drive.observation import Observation
from soak.export.course import Course
from soak.export.metrics import RunMetrics
from soak.export.tally import Tally
from soak.incident.journal import Journal, Writes
from soak.incident.journal_pruning import Keep
from soak.oracle.divergence import diverge
from soak.oracle.probe import ProbeOutcome, ProbeResult, ResumeKind
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.plan.shapes import SHAPES
from soak.plan.spec import ResolvedSpec
from soak.sglang.exchange import Answer, Outcome, TokenIds

SPEC = ResolvedSpec(
    geometry=Geometry(vocab_size=150_000, context_len=2048, chunk=512, state_grid=64, hybrid=True),
    weights=tuple((name, 1) for name in SHAPES if name not in ("adapters", "strict-json")),
    max_context=1500,
)
_SCORED = 64
_SHAPES = 8
_KNOWN = 2000
_PATIENCE_S = 120.0


class Part(ABC):
    """One part, aged by the segments that it has worked on."""

    unit = "request"

    @abstractmethod
    def prepare(self, count: int) -> None:
        """Make the next segment's work."""

    @abstractmethod
    def work(self) -> None:
        """Do it, all of it."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of files and threads."""


class Planned(Part):
    """Items and their token ids, as the driver asks for them. A request is a prompt."""

    def __init__(self) -> None:
        self._plan = Plan(1, SPEC)
        self._walk = self._plan.walk()
        self._wanted = self._made = 0

    def prepare(self, count: int) -> None:
        """Make the next segment's work."""
        self._wanted += count

    def work(self) -> None:
        """Do it, all of it; the few prompts that an index has more are the next segment's."""
        while self._made < self._wanted:
            for item in next(self._walk):
                for prompt in item.prompts:
                    self._plan.ids(prompt)
                    self._made += 1


class Answers:
    """A planned load's prompts, answered at once, a hundred a second by their own clock.

    The same few thousand come again and again under new indices: what is timed is not the making of them.
    """

    def __init__(self) -> None:
        self._plan, self._random = Plan(1, SPEC), np.random.default_rng(0)
        self._now_s = time.monotonic()
        self._known = list(islice(self._first(), _KNOWN))
        self._count = 0

    def next(self, count: int) -> list[Observation]:
        """So many more."""
        made = []
        for _ in range(count):
            known = self._known[self._count % _KNOWN]
            item = replace(known.item, index=self._count)
            self._count += 1
            self._now_s += 0.01
            answer = replace(
                known.answer,
                sent_s=self._now_s,
                first_token_s=self._now_s + 0.05,
                finished_s=self._now_s + 0.5 + float(self._random.exponential(0.2)),
            )
            made.append(replace(known, item=item, answer=answer, intended_s=self._now_s - 0.002))
        return made

    def _first(self) -> Iterator[Observation]:
        for items in self._plan.walk():
            whole: dict[int, TokenIds] = {}
            for item in items:
                for part, prompt in enumerate(item.prompts):
                    ids = self._plan.ids(prompt)
                    if item.parent is not None:
                        ids = np.concatenate([whole[item.parent], ids])
                    output = self._random.integers(10, 1000, item.max_new_tokens).astype(np.int32)
                    answer = Answer(
                        rid="r",
                        outcome=Outcome.OK,
                        prompt_tokens=len(ids),
                        completion_tokens=len(output),
                        cached_tokens=len(ids) // 2,
                        output_ids=output,
                    )
                    whole[item.step] = np.concatenate([ids, output])
                    yield Observation(item, part, ids, 0.0, answer)


class Journalled(Part):
    """Rows through the journal's thread to the disk. keep_bytes: from where on it lets go of the oldest."""

    def __init__(self, keep_bytes: int) -> None:
        self._folder = TemporaryDirectory(prefix="soak-bench-flat-")
        self._answers = Answers()
        writes = Writes(
            run_id="000000000000", seed=1, nonce=0, spec=SPEC, fingerprint="f", soak_version="bench"
        )
        self._said: list[str] = []
        path = Path(self._folder.name) / "journal.sqlite"
        self._journal = Journal(path, writes, self._said.append, Keep(bytes=keep_bytes))
        self._put = 0
        self._next: list[Observation] = []

    def prepare(self, count: int) -> None:
        """Make the next segment's work."""
        self._next = self._answers.next(count)

    def work(self) -> None:
        """Do it, all of it."""
        for seen in self._next:
            self._journal.observe_load(seen)
        self._put += len(self._next)
        self._next = []
        until = time.monotonic() + _PATIENCE_S
        while self._journal.written < self._put:
            self._journal.tick()
            if self._journal.dropped or time.monotonic() > until:
                raise RuntimeError(f"the journal does not follow: {self._journal.facts()}, {self._said}")
            time.sleep(0.005)

    def close(self) -> None:
        """Let go of file and thread."""
        self._journal.close()
        self._folder.cleanup()


class Probed(Part):
    """Common to what sees probes: their results, over shapes, buckets and kinds."""

    unit = "probe"

    def __init__(self) -> None:
        self._random = np.random.default_rng(2)
        self._number = 0
        self._known = [self._probe() for _ in range(_KNOWN)]
        self._results: list[ProbeResult] = []

    def prepare(self, count: int) -> None:
        """Make the next segment's work."""
        first, self._number = self._number, self._number + count
        self._results = [replace(self._known[n % _KNOWN], number=n) for n in range(first, self._number)]

    def _probe(self) -> ProbeResult:
        self._number += 1
        cold = -self._random.exponential(2.0, _SCORED)
        warm = cold + self._random.normal(0.0, 0.01, _SCORED)
        return ProbeResult(
            number=self._number,
            shape=f"shape-{self._number % _SHAPES}",
            kind=(ResumeKind.PREFILL, ResumeKind.DECODE)[self._number // _SHAPES % 2],
            outcome=ProbeOutcome.VALID,
            resume_boundary=64 << (self._number % 5),
            victim_tokens=1000,
            under_load=self._number % 3 > 0,
            warm=warm,
            cold=cold,
            divergence=diverge(warm, cold),
        )


class Detected(Probed):
    """Probe results through calibrated detectors, on healthy figures."""

    def __init__(self) -> None:
        super().__init__()
        # so high a bar that chance never latches an alarm, after which a stream would rest
        self._detector = Detector(DetectSettings(p0_max=0.01, run_length=1e30))
        for kind in (ResumeKind.PREFILL, ResumeKind.DECODE):
            while self._detector.wants_control(kind):
                seen = self._probe().divergence
                assert seen is not None  # noqa: S101 - made with one
                self._detector.add_control(kind, seen, True)

    def work(self) -> None:
        """Do it, all of it."""
        for result in self._results:
            self._detector.wants_repeat(result)
            self._detector.observe(result)
        self._detector.report()


class Counted(Probed):
    """Requests, a tenth as many probes, and a scrape a segment through tally, course and metrics."""

    unit = "request"

    def __init__(self) -> None:
        super().__init__()
        self._registry = CollectorRegistry()
        self._tally, self._course = Tally(), Course()
        self._metrics = RunMetrics(self._registry, shapes=SHAPES)
        self._answers = Answers()
        self._next: list[Observation] = []

    def prepare(self, count: int) -> None:
        """Make the next segment's work."""
        super().prepare(count // 10)
        self._next = self._answers.next(count)

    def work(self) -> None:
        """Do it, all of it."""
        for seen in self._next:
            self._tally.observe_load(seen)
            self._metrics.observe_load(seen)
            self._course.observe_load(seen)
        for result in self._results:
            self._tally.observe_probe(result)
            self._metrics.observe_probe(result)
            self._course.observe_probe(result)
        self._next = []
        generate_latest(self._registry)


PARTS: dict[str, Callable[[], Part]] = {
    "plan": Planned,
    "journal": lambda: Journalled(4 << 30),
    "journal-full": lambda: Journalled(4 << 20),
    "detectors": Detected,
    "metrics": Counted,
}
"""journal: nothing is let go of; journal-full: the oldest rows go all the time."""
