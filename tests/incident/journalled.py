"""A run without a server: planned prompts answered at random, probes on a toy server, all journalled."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from soak.detect.verdict import Alarm, Verdict
from soak.drive.observation import Observation
from soak.incident.journal import Journal, Writes
from soak.incident.journal_pruning import Keep
from soak.oracle.probe import ProbeResult
from soak.oracle.prober import PassSeen, Prober, ProbeSettings
from soak.oracle.victims import Victim, Victims
from soak.plan.geometry import Geometry
from soak.plan.item import WrittenBy
from soak.plan.plan import Plan
from soak.plan.shapes import SHAPES
from soak.plan.spec import ResolvedSpec
from soak.sglang.exchange import Answer, Outcome, TokenIds
from soak.store.alarms import StoredAlarm
from tests.oracle.test_prober import Asked
from tests.oracle.toy import ToySession

GEOMETRY = Geometry(
    vocab_size=150_000, context_len=512, chunk=128, state_grid=64, hybrid=True, adapters=("fr",)
)
SPEC = ResolvedSpec(
    geometry=GEOMETRY,
    # the two widest are left out: a pinned window shall not be all that the bytes allow
    weights=tuple((name, 1) for name in SHAPES if name not in ("strict-json", "abort-load")),
    max_context=360,
    min_prompt=48,
    max_new_tokens=16,
    decode_tokens=40,
    rate="50",
)
PROBING = ProbeSettings(
    tail=20,
    continuation=16,
    kept_context=16,
    amnesia_per_mille=500,
    control_per_mille=800,
    repeat_per_mille=500,
)

KEEP = Keep(before_us=5_000_000)


@dataclass
class Run:
    """What went into the journal, to hold against what comes out."""

    path: Path
    seed: int = 3
    nonce: int = 5
    keep: Keep = KEEP
    run_id: str = "0123456789ab"
    fingerprint: str = "aaaa"
    said: list[str] = field(default_factory=list)
    loads: dict[tuple[int, int, int], tuple[TokenIds, TokenIds]] = field(default_factory=dict)
    passes: list[PassSeen] = field(default_factory=list)
    probes: list[ProbeResult] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = Plan(self.seed, SPEC, self.nonce)
        self.now_s = time.monotonic() - 3600.0  # the run is made up: an hour of it has passed already
        self.rng = np.random.default_rng(self.seed)
        self.victims = Victims(self.seed)
        self.session = ToySession()
        self.prober = Prober(
            self.session,  # type: ignore[arg-type]
            self.victims,
            Asked(),
            GEOMETRY,
            PROBING,
            seed=self.seed,
            nonce=self.nonce,
            on_pass=self._passed,
        )
        self.journal = self.open()

    def open(self) -> Journal:
        writes = Writes(
            run_id=self.run_id,
            seed=self.seed,
            nonce=self.nonce,
            spec=SPEC,
            fingerprint=self.fingerprint,
            soak_version="0.1",
            fields={"version": "0.5.17", "simulator": True},
        )
        return Journal(self.path, writes, self.said.append, self.keep)

    def load(self, indices: range, gap_s: float = 0.01) -> None:
        """Send these indices, each with all its steps, one after the other."""
        for index in indices:
            whole: dict[int, TokenIds] = {}
            for item in self.plan.items(index):
                for part, prompt in enumerate(item.prompts):
                    ids = self.plan.ids(prompt)
                    if item.parent is not None:
                        ids = np.concatenate([whole[item.parent], ids])
                    answer = self._answer(ids, item.max_new_tokens, gap_s)
                    seen = Observation(item, part, ids, answer.sent_s - 0.002, answer)
                    self.journal.observe_load(seen)
                    self.observations.append(seen)
                    self.loads[index, item.step, part] = (ids, answer.output_ids)
                    whole[item.step] = np.concatenate([ids, answer.output_ids])
                    if item.parent is None and item.tenant is None:
                        self._plant(seen, whole[item.step])

    def _answer(self, ids: TokenIds, tokens: int, gap_s: float) -> Answer:
        self.now_s += gap_s
        output = self.rng.integers(10, GEOMETRY.vocab_size, tokens).astype(np.int32)
        return Answer(
            rid="r",
            outcome=Outcome.OK,
            sent_s=self.now_s,
            finished_s=self.now_s + 5 * gap_s,
            prompt_tokens=len(ids),
            completion_tokens=tokens,
            output_ids=output,
        )

    def _plant(self, seen: Observation, whole: TokenIds) -> None:
        decoded = seen.item.written_by is WrittenBy.DECODE
        ids = whole if decoded else seen.ids
        if len(ids) + PROBING.tail >= GEOMETRY.context_len:
            return
        self.session.cached.setdefault(None, []).append(ids.tobytes())
        self.victims.add(
            Victim(
                ids=ids,
                prompt_len=len(seen.ids),
                shape=seen.item.shape,
                written_by=seen.item.written_by,
                index=seen.item.index,
                step=seen.item.step,
                part=seen.part,
                written_s=seen.answer.finished_s,
            )
        )

    def _passed(self, seen: PassSeen) -> None:
        self.now_s += 0.01
        seen.sent.answer.sent_s, seen.sent.answer.finished_s = self.now_s, self.now_s + 0.008
        self.passes.append(seen)
        self.journal.observe_pass(seen)

    async def probe(self, number: int) -> ProbeResult:
        """One probe of a victim that load has left."""
        result = await self.prober.probe(number)
        assert result is not None
        result.started_s, result.seconds = self.now_s, 0.01
        self.probes.append(result)
        self.journal.observe_probe(result)
        return result

    def alarm(self, *numbers: int, name: str = "3fa9c1d2", fingerprint: str = "") -> StoredAlarm:
        """An alarm about these probes, raised now."""
        raised_s = time.time() - time.monotonic() + self.now_s
        alarm = Alarm(Verdict.CORRUPT, "ceiling-onset", "s/64/prefill", "s", "0.8 nats off", numbers)
        return StoredAlarm(name, fingerprint or self.fingerprint, raised_s, alarm)

    def long_load(self, count: int, first: int = 0) -> None:
        """Prompts of 1,000 tokens with 64 returned, quickly: their ids are not those of the plan."""
        item = self.plan.items(0)[0]
        sent = self.rng.integers(10, GEOMETRY.vocab_size, 1000).astype(np.int32)
        for index in range(first, first + count):
            answer = self._answer(sent, 64, 0.001)
            answer.cached_tokens = int(self.rng.integers(0, 1000))
            self.journal.observe_load(
                Observation(replace(item, index=index), 0, sent, answer.sent_s - 0.002, answer)
            )
