"""Versions and running flags against the table: exposed, possible, ruled out or fixed, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.runners.exposure import Exposure, exposures, release
from soak.runners.faults import FAULTS
from soak.runners.flags import SERVER_FLAGS

SAMPLES = Path(__file__).parents[1] / "sglang" / "samples"


def said(name: str) -> dict[str, Any]:
    bodies = [
        json.loads((SAMPLES / f"{name}{part}_info.json").read_text())["body"] for part in ("model", "server")
    ]
    return {**bodies[0], **bodies[1]}


def buffered(**more: Any) -> dict[str, Any]:
    """A Falcon-H1 with extra_buffer, everything else as the real server of the sample has it."""
    return {**said("falconh1_"), "mamba_radix_cache_strategy": "extra_buffer", **more}


def graphs(prefill: str, decode: str, **more: Any) -> dict[str, Any]:
    return {"cuda_graph_config": {"prefill": {"backend": prefill, **more}, "decode": {"backend": decode}}}


def found(version: str, words: dict[str, Any], *wanted: Exposure) -> set[str]:
    return {e.fault.name for e in exposures(version, words) if e.exposure in wanted}


def test_every_published_fault_names_flags_that_there_are() -> None:
    for fault in FAULTS:
        assert set(fault.flags) <= set(SERVER_FLAGS), fault.name
        assert bool(fault.flags) is fault.report.startswith("SGLang"), fault.name
        if fault.last_seen and fault.fixed:
            seen, fixed = release(fault.last_seen), release(fault.fixed)
            assert seen is not None
            assert fixed is not None
            assert seen < fixed


def test_a_real_attention_server_is_exposed_to_nothing() -> None:
    assert found("0.5.15", said(""), Exposure.EXPOSED, Exposure.POSSIBLE) == set()


def test_a_real_hybrid_without_buffers_neither() -> None:
    assert found("0.5.18", said("falconh1_"), Exposure.EXPOSED, Exposure.POSSIBLE) == set()


def test_extra_buffer_by_release() -> None:
    words = buffered(**graphs("breakable", "full"), disable_overlap_schedule=False)
    assert found("0.5.16", words, Exposure.EXPOSED) == {
        "stale-track-tail", "multi-prefill-offset", "track-overlap",
    }  # fmt: skip
    assert found("0.5.17", words, Exposure.EXPOSED) == {"multi-prefill-offset", "track-overlap"}
    assert found("0.5.18", words, Exposure.EXPOSED) == {"multi-prefill-offset"}
    assert found("0.5.20", words, Exposure.EXPOSED) == set()


def test_a_model_that_is_not_mamba2_is_not_exposed_to_what_only_mamba2_does() -> None:
    words = buffered(**graphs("breakable", "full"), architectures=["Qwen3NextForCausalLM"])
    assert found("0.5.16", words, Exposure.EXPOSED) == set()
    unknown = buffered(**graphs("breakable", "full"), architectures=["SomethingNewForCausalLM"])
    assert found("0.5.16", unknown, Exposure.POSSIBLE) >= {"stale-track-tail", "multi-prefill-offset"}


@pytest.mark.parametrize(
    ("chunk", "rows", "exposed"),
    [(512, None, False), (1024, None, True), (512, 4, True), (8192, 1, False), (-1, None, None)],
)
def test_full_prefill_graphs_need_two_rows(chunk: int, rows: int | None, exposed: bool | None) -> None:
    words = buffered(
        **graphs("full", "full", full_prefill_max_req=rows),
        chunked_prefill_size=chunk,
        architectures=["InklingForCausalLM"],
    )
    (judged,) = (e for e in exposures("0.5.17", words) if e.fault.name == "stale-track-rows")
    expected = {True: Exposure.EXPOSED, False: Exposure.RULED_OUT, None: Exposure.POSSIBLE}
    assert judged.exposure is expected[exposed]


def test_speculation_with_prefill_graphs() -> None:
    words = buffered(**graphs("breakable", "full"), speculative_algorithm="EAGLE")
    assert "spec-untracked" in found("0.5.17", words, Exposure.EXPOSED)
    assert "spec-untracked" in found("0.5.18", words, Exposure.FIXED)
    words["disable_prefill_cuda_graph"] = True
    assert "spec-untracked" in found("0.5.17", words, Exposure.RULED_OUT)


def test_what_the_last_release_has() -> None:
    words = buffered(enable_mixed_chunk=True, enable_lora=True)
    exposed = {e.fault.name: e.why for e in exposures("0.5.22", words) if e.exposure is Exposure.EXPOSED}
    assert set(exposed) == {"mixed-chunk-drop", "tenant-key-collision"}
    assert "fixed in 0.5.23" in exposed["mixed-chunk-drop"]
    assert "no release with a fix is known" in exposed["tenant-key-collision"]
    assert found("0.5.23", words, Exposure.EXPOSED) == {"tenant-key-collision"}
    later = {e.fault.name: e for e in exposures("0.5.24", words)}
    assert later["tenant-key-collision"].exposure is Exposure.POSSIBLE
    assert "not checked in 0.5.24; last seen in 0.5.23" in later["tenant-key-collision"].why


def test_a_fault_that_no_release_had() -> None:
    words = {e.fault.name: e for e in exposures("0.5.19", said(""))}
    assert words["branch-state-mismatch"].exposure is Exposure.FIXED
    assert words["branch-state-mismatch"].why == "not in 0.5.19"


def test_what_is_established_for_no_release() -> None:
    judged = {e.fault.name: e for e in exposures("0.5.23", {**said(""), "enable_hierarchical_cache": True})}
    assert judged["host-tier-race"].exposure is Exposure.POSSIBLE
    assert "not established" in judged["host-tier-race"].why


def test_roles_of_a_disaggregated_pair() -> None:
    words = {**said("falconh1_"), "disaggregation_mode": "decode"}
    assert found("0.5.18", words, Exposure.EXPOSED) == {"abort-slot-reuse", "retract-lost-state"}
    assert found("0.5.18", {**words, "disaggregation_mode": "prefill"}, Exposure.EXPOSED) == {
        "abort-slot-reuse"
    }


def test_a_release_between_the_last_seen_and_the_fixed_one() -> None:
    words = {**said(""), "disaggregation_mode": "prefill"}
    assert "abort-slot-reuse" in found("0.5.20", words, Exposure.EXPOSED)
    assert "abort-slot-reuse" in found("0.5.20.post1", words, Exposure.POSSIBLE)
    assert "abort-slot-reuse" in found("0.5.21", words, Exposure.FIXED)


def test_a_server_that_says_nothing_rules_nothing_out() -> None:
    judged = [e for e in exposures("0.5.16", {}) if e.fault.name != "branch-state-mismatch"]
    assert {e.exposure for e in judged} == {Exposure.POSSIBLE}
    assert all("does not say" in e.why for e in judged)


def test_a_development_build_is_nobodys_release() -> None:
    words = buffered(**graphs("disabled", "full"))
    judged = {e.fault.name: e for e in exposures("0.5.17.dev12+gabc", words)}
    assert judged["stale-track-tail"].exposure is Exposure.POSSIBLE
    assert "is no release" in judged["stale-track-tail"].why


def test_an_installation_that_carries_the_fix() -> None:
    words = buffered(**graphs("disabled", "full"))
    (judged,) = (
        e for e in exposures("0.5.16", words, {"stale-track-tail"}) if e.fault.name == "stale-track-tail"
    )
    assert (judged.exposure, judged.why) == (Exposure.FIXED, "the installation carries the fix")


def test_older_spellings() -> None:
    words = {"mamba_scheduler_strategy": "extra_buffer", "disable_cuda_graph": False}
    assert SERVER_FLAGS["extra_buffer"].reads(words) is True
    assert SERVER_FLAGS["decode_graph"].reads(words) is True
    assert SERVER_FLAGS["prefill_graph"].reads(words) is None
    assert SERVER_FLAGS["prefill_graph"].reads({"enable_piecewise_cuda_graph": True}) is True
    assert SERVER_FLAGS["extra_buffer"].reads({"mamba_radix_cache_strategy": "auto"}) is None
    assert SERVER_FLAGS["sliding_window"].reads(
        {"internal_states": [{"memory_usage": {"token_capacity_swa": 512}}]}
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.5.15.post1", (0, 5, 15, 1)), ("v0.5.20", (0, 5, 20, 0)), ("0.5.18+soak.sim", (0, 5, 18, 0)),
     ("0.5.20rc1", None), ("unknown", None)],
)  # fmt: skip
def test_versions(text: str, numbers: tuple[int, ...] | None) -> None:
    assert release(text) == numbers


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4)


@given(st.text(max_size=12), st.dictionaries(st.sampled_from(sorted(said(""))), JSON))
def test_any_words(version: str, words: dict[str, Any]) -> None:
    assert all(e.why for e in exposures(version, words))
