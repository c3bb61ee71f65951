"""What was evicted and is asked once more, on a simulator whose pool is so small that it does evict."""

from __future__ import annotations

import numpy as np

from soak.detect.detector import Detector
from soak.detect.settings import DetectSettings
from soak.oracle.invariance import Invariance
from soak.oracle.probe import ProbeResult, ResumeKind
from soak.oracle.prober import ProbeSettings
from soak.oracle.victims import Victim, Victims
from soak.plan.geometry import Geometry
from soak.plan.item import WrittenBy
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session
from soak.sim.config import SimConfig
from soak.sim.server import running

GEOMETRY = Geometry(context_len=800, chunk=64, vocab_size=1000)
TAIL = 24
WANTED = 2  # of the pair in question


def long_one(index: int) -> Victim:
    ids = np.random.Generator(np.random.Philox(key=[index, 0])).integers(20, 980, 160).astype(np.int32)
    return Victim(
        ids=ids,
        prompt_len=len(ids),
        shape="decode-seeded",
        written_by=WrittenBy.PREFILL,
        index=index,
        step=0,
        part=0,
        written_s=0.0,
    )


async def recomputed(detector: Detector, *, faults: tuple[str, ...] = ()) -> list[ProbeResult]:
    """Invariance probes until so many have asked again what the ones between had evicted."""
    victims = Victims(1)
    for index in range(8):
        victims.add(long_one(index))
    sim = SimConfig(
        numerics="exact",
        context_len=800,
        chunked_prefill_size=64,
        max_total_tokens=900,
        max_mamba_slots=400,
        faults=faults,
    )
    found: list[ProbeResult] = []
    async with running(sim) as url, SGLangClient(url) as client:
        asking = Invariance(
            Session(client, "recomputed"),
            victims,
            detector,
            GEOMETRY,
            ProbeSettings(tail=TAIL),
            seed=5,
            nonce=6,
            companions=1,
            remembered=3,
        )
        for number in range(1, 200):
            result = await asking.probe(number)
            assert result is not None
            detector.observe(result)
            if result.kind is ResumeKind.RECOMPUTED:
                found.append(result)
                if len(found) == WANTED:
                    break
    return found


async def test_a_healthy_server_computes_what_it_evicted_to_the_last_bit_again() -> None:
    detector = Detector(DetectSettings(max_abs_d=1e-4))
    for result in await recomputed(detector):
        assert result.valid, result.detail
        assert result.divergence is not None
        assert result.divergence.tokens == TAIL
        assert result.divergence.zero
        assert result.control is not None
        assert result.control.zero
        assert result.ways.endswith("after the first time")
    report = detector.report()
    assert not report.alarms
    (kind,) = [kind for kind in report.kinds if kind.kind == ResumeKind.RECOMPUTED.value]
    assert kind.controls == WANTED


async def test_a_server_that_computes_otherwise_by_now_is_seen_and_its_cold_passes_are_as_wrong() -> None:
    """A slot's last owner shows in whatever is cold: what was said before, and what is said now."""
    found = await recomputed(Detector(DetectSettings()), faults=("slot-reuse-initial-state",))
    assert len(found) == WANTED
    off = [r for r in found if r.divergence is not None and not r.divergence.zero]
    assert off
    for result in off:
        assert result.control is not None
        assert not result.control.zero
