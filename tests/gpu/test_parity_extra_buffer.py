"""The script that asks a GPU server where extra_buffer prefixes resume, run against the simulator."""

from __future__ import annotations

import pytest

from soak.sim.config import SimConfig
from tests.gpu.parity_extra_buffer import Geometry, Target, check, kept, main
from tests.real_sglang.simulated import serving


def test_the_simulator_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--simulator"]) == 0
    said = capsys.readouterr().out
    assert said.count("PASS") >= 25
    assert "FAIL" not in said


def test_other_pages_chunks_and_intervals() -> None:
    config = SimConfig(
        radix_strategy="extra_buffer", page_size=16, chunked_prefill_size=512, mamba_track_interval=256
    )
    said: list[str] = []
    with serving(config) as url:
        assert check(Target(url, None), said.append) == 0, said
    assert "c = 64, track interval = 256, chunk = 512" in said


def test_a_server_that_resumes_elsewhere_fails() -> None:
    """A grid twice as wide as the rule's: prompts just over one grid resume at 0."""
    said: list[str] = []
    with serving(SimConfig(radix_strategy="extra_buffer", state_chunk=128)) as url:
        assert check(Target(url, None), said.append) > 5
    assert "FAIL  prefill of 64: resumes at 0, expected 64" in said


def test_no_buffer_is_refused() -> None:
    with serving(SimConfig(radix_strategy="no_buffer")) as url:
        with pytest.raises(SystemExit, match="is no_buffer: start a hybrid"):
            check(Target(url, None), print)


def test_the_rule() -> None:
    geometry = Geometry(grid=64, interval=128, chunk=256, context=4096)
    assert [kept(geometry, n) for n in (63, 64, 127, 256, 300, 320)] == [0, 64, 64, 256, 256, 320]
    assert [kept(geometry, n, 100) for n in (163, 164, 300)] == [100, 164, 292]
