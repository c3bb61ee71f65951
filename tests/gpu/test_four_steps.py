"""The script that shows SGLang #34184 by hand, against the simulator with the fault and without."""

from __future__ import annotations

import re
from typing import Any

import pytest

from soak.sim.config import SimConfig
from soak.sim.graphs import PrefillGraphs
from soak.sim.inputs import ExtendInputs
from tests.gpu.four_steps import judged, main
from tests.real_sglang.simulated import serving

LIKE: dict[str, Any] = {
    "radix_strategy": "extra_buffer", "page_size": 128, "chunked_prefill_size": 512, "prefill_graph_rows": 4,
    "numerics": "exact",
}  # fmt: skip


def differences(said: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^  (.*?): max .* (\S+)$", said, re.MULTILINE)}


def test_with_the_fault_every_document_but_the_first_differs(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(SimConfig(**LIKE, faults=("stale-track-rows",))) as url:
        assert main([url, "--seed", "1"]) == 1
    found = differences(capsys.readouterr().out)
    assert found.pop("document 0") == 0
    assert len(found) == 3 and all(value > 0.01 for value in found.values())


def test_without_it_none_does(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(SimConfig(**LIKE)) as url:
        assert main([url, "--seed", "1", "--repeat", "2"]) == 0
    assert set(differences(capsys.readouterr().out).values()) == {0.0}


def test_one_row_cannot_be_stale() -> None:
    with serving(SimConfig(**LIKE | {"prefill_graph_rows": 1}, faults=("stale-track-rows",))) as url:
        assert main([url, "--seed", "1"]) == 0


def test_a_server_without_checkpoints_cannot_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(SimConfig(**LIKE | {"disable_radix_cache": True})) as url:
        assert main([url, "--seed", "1"]) == 2
    assert "resumed at 0, not at 128" in capsys.readouterr().out
    assert main([url, "--seed", "1"]) == 2
    assert "is the server up?" in capsys.readouterr().out


def test_a_control_that_differs_is_no_verdict() -> None:
    assert judged({"document 0": 0.5, "document 1": 0.5}, 0.0)[0] == 2
    assert judged({"document 0": 1e-4, "document 1": 0.5}, 1e-3)[0] == 1
    assert judged({"document 0": 1e-4, "document 1": 1e-4}, 1e-3)[0] == 0


MIXED = LIKE | {"mixed_chunk": True, "step_delay_s": 0.004}


def test_mixed_without_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(SimConfig(**MIXED)) as url:
        assert main([url, "--mixed", "--seed", "1"]) == 0
    assert set(differences(capsys.readouterr().out)) == {"control", "row 0", "row 1, decoding"}


def test_mixed_with_rows_below_the_batch_left_as_they_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What reading the real server suggests: a mixed batch brings no mask, so the rows keep theirs."""
    load = PrefillGraphs.load

    def without_mask(self: PrefillGraphs, batch: ExtendInputs, bucket: int) -> ExtendInputs:
        names = ("track_mask", "track_indices")
        before = {name: getattr(self.buffers, name)[: batch.live].copy() for name in names}
        views = load(self, batch, bucket)
        if batch.live > 1 and (batch.extend_lens[: batch.live] == 1).any():
            for name in names:
                getattr(self.buffers, name)[: batch.live] = before[name]
        return views

    monkeypatch.setattr(PrefillGraphs, "load", without_mask)
    with serving(SimConfig(**MIXED)) as url:
        assert main([url, "--mixed", "--seed", "1"]) == 1
    found = differences(capsys.readouterr().out)
    assert found["control"] == 0 and found["row 0"] > 0.01


def test_mixed_with_a_decode_that_is_too_short_cannot_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(SimConfig(**MIXED)) as url:
        assert main([url, "--mixed", "--seed", "1", "--long", "2"]) == 2
    assert "give more than --long 2" in capsys.readouterr().out
