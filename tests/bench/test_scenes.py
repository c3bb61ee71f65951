"""Every row of the known-fault table has traffic that brings it about, and only where it is planted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from soak.bench.detect.recording import Plan, record_run
from soak.bench.detect.records import Probe
from soak.bench.detect.scenes import SCENES, Scene, scene
from soak.oracle.probe import ResumeKind
from soak.runners.faults import BY_NAME, settings_for

ALWAYS = Plan(probes=4, often=1000, control_per_mille=0, amnesia_per_mille=0, repeat_per_mille=0)


def probes_of(what: Scene, plan: Plan = ALWAYS, seed: int = 1) -> list[Probe]:
    return asyncio.run(record_run(what, "exact", plan, seed, dict.fromkeys(ResumeKind, 0.0)))


def spoiled(made: Probe) -> bool:
    held = made.result
    return held.outcome.hard_alarm or (held.divergence is not None and not held.divergence.zero)


def test_no_fault_is_without_a_scene() -> None:
    assert set(BY_NAME) <= {each.fault for each in SCENES}
    assert len({s.name for s in SCENES}) == len(SCENES)
    with pytest.raises(KeyError):
        scene("no such fault")


@pytest.mark.parametrize("what", [s for s in SCENES if not s.unseen], ids=lambda s: s.name)
def test_its_traffic_spoils_a_probe_within_a_few_acts(what: Scene) -> None:
    slow_to_show = ("abort-slot-reuse", "nan-logprob", "host-tier-race", "retract-lost-state")
    made = probes_of(what, replace(ALWAYS, probes=10 if what.name in slow_to_show else 4))
    assert any(spoiled(p) for p in made)
    shown = [p for p in made if spoiled(p) and p.result.valid]
    assert all(p.result.confirmation is not None or p.result.detail for p in shown)


@pytest.mark.parametrize("name", ["stale-track-rows", "track-overlap", "host-tier-race"])
def test_the_same_traffic_spoils_nothing_on_a_server_without_the_fault(name: str) -> None:
    planted = scene(name)
    settings = {**settings_for([planted.fault]), **planted.settings}
    made = probes_of(replace(planted, fault="", settings=settings, probes=4), replace(ALWAYS, clean_probes=4))
    assert [p.result.outcome.value for p in made] == ["valid"] * 4
    assert not any(spoiled(p) for p in made)


def test_the_reasons_why_a_fault_is_unseen_are_rare_exceptions() -> None:
    assert {s.name for s in SCENES if s.unseen} == {
        "identity-swap",
        "slot-reuse-initial-state",
        "chunk-boundary-slip",
        "late-output-rows",
    }
