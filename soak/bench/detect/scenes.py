"""Which traffic brings which known fault about, on what server, and how many probes are recorded of it.

A maintainer who adds a row to the known-fault table adds a scene here; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from soak.bench.detect import acts
from soak.bench.detect.acts import Act
from soak.oracle.probe import ResumeKind
from soak.runners.faults import settings_for
from soak.sim.config import Numerics, SimConfig

PREFILL, DECODE = ResumeKind.PREFILL, ResumeKind.DECODE
CLEAN = "clean"

LOOSE = 0.2
"""p0_max with which 60 controls are enough."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Scene:
    """fault: "" for a clean server; often: of 1,000 acts, those in which the conditions come together.

    settings: of the simulator, beyond the fault's own; kinds: those that need controls; probes, exact_probes:
    recorded per seed with production and with exact numerics, of which a few may come out invalid. unseen:
    why no comparison of warm with cold can tell, "" if it can. noise: factor on the noise at the first
    and at the last probe; later: settings of another server that takes the first one's place half way;
    calibrated_by: the scene whose calibration serves. p0_max: of the calibration; larger where evidence has
    no part, as the controls are spoiled as well or no control can copy the resume.
    """

    name: str
    fault: str
    act: Act
    often: int = 500
    settings: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    kinds: tuple[ResumeKind, ...] = (PREFILL,)
    probes: int = 32
    exact_probes: int = 16
    unseen: str = ""
    noise: tuple[float, float] = (1.0, 1.0)
    later: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    calibrated_by: str = ""
    p0_max: float = 0.01

    def config(self, numerics: Numerics, noise_seed: int, *, later: bool = False) -> SimConfig:
        """The server of one run, or the one that takes its place half way."""
        given = {**settings_for([self.fault] if self.fault else []), **self.settings}
        given.update(self.later if later else {})
        faults = (self.fault,) if self.fault else ()
        return SimConfig(numerics=numerics, faults=faults, noise_seed=noise_seed, **given)


def _of(fault: str, act: Act, **given: Any) -> Scene:
    return Scene(fault, fault, act, **given)


SCENES: tuple[Scene, ...] = (
    _of("stale-track-rows", acts.stale_track_rows, probes=80, exact_probes=32),
    _of(
        "stale-track-tail",
        acts.stale_track_tail,
        kinds=(PREFILL, DECODE),
        p0_max=LOOSE,
        exact_probes=32,
    ),
    _of("multi-prefill-offset", acts.multi_prefill_offset),
    _of("track-overlap", acts.track_overlap, kinds=(PREFILL, DECODE), probes=64, exact_probes=40),
    _of("mixed-chunk-drop", acts.mixed_chunk_drop, exact_probes=40),
    _of("spec-untracked", acts.prefilled, p0_max=LOOSE),
    _of("branch-state-mismatch", acts.branch_state_mismatch),
    _of(
        "abort-slot-reuse",
        acts.abort_slot_reuse,
        settings=MappingProxyType(
            {"max_total_tokens": 800, "max_running_requests": 1, "chunked_prefill_size": 512}
        ),
    ),
    _of(
        "retract-lost-state",
        acts.retract_lost_state,
        probes=64,
        exact_probes=64,
        kinds=(DECODE,),
        p0_max=LOOSE,
        settings=MappingProxyType({"max_total_tokens": 470, "max_running_requests": 3}),
    ),
    _of("tenant-key-collision", acts.tenant_key_collision),
    _of(
        "host-tier-race",
        acts.host_tier_race,
        probes=64,
        exact_probes=32,
        settings=MappingProxyType({"max_total_tokens": 560, "host_bandwidth": 16}),
    ),
    _of("short-tail-chunk", acts.short_tail_chunk, probes=64),
    _of(
        "slot-reuse-initial-state",
        acts.prefilled,
        p0_max=LOOSE,
        unseen="cold passes are spoiled as well; its controls alone are SUSPECT",
    ),
    _of(
        "chunk-boundary-slip",
        acts.prefilled,
        p0_max=LOOSE,
        settings=MappingProxyType({"chunked_prefill_size": 40}),
        unseen="cold passes are spoiled alike; only invariance probes see it, and the bench makes none",
    ),
    _of(
        "late-output-rows",
        acts.prefilled,
        p0_max=LOOSE,
        unseen="every cache is right; only what is generated in a batch differs, and the bench makes none",
    ),
    _of("identity-swap", acts.prefilled, p0_max=LOOSE, unseen="both caches are right; only a canary sees it"),
    _of("state-not-restored", acts.prefilled, p0_max=LOOSE),
    _of("middle-truncated", acts.prefilled, p0_max=LOOSE),
    _of("nan-logprob", acts.prefilled, p0_max=LOOSE),
)
CLEAN_SCENE = Scene(
    CLEAN,
    "",
    acts.ordinary,
    settings=MappingProxyType({"radix_strategy": "extra_buffer"}),
    kinds=(PREFILL, DECODE),
    probes=256,
)

_CHANGING = replace(CLEAN_SCENE, probes=96, calibrated_by=CLEAN)

DRIFTS = (
    replace(_CHANGING, name="clean, noise grows by a tenth", noise=(1.0, 1.1)),
    replace(_CHANGING, name="clean, noise doubles", noise=(1.0, 2.0)),
    replace(
        _CHANGING,
        name="clean, deployed anew with another batch size",
        later=MappingProxyType(
            {"chunked_prefill_size": 128, "max_running_requests": 8, "decode_graph_batch_sizes": (1, 4)}
        ),
    ),
)
"""Servers without a fault that change under way. They go by the clean server's calibration."""


def scene(name: str) -> Scene:
    """The scene of that name. Raises KeyError."""
    return {s.name: s for s in (*SCENES, CLEAN_SCENE, *DRIFTS)}[name]
