"""Each simulator fault is found by the nightly workload, compressed in time; five of them in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.runners.faults import BY_NAME

from .nightly import CI, case, soak_until_found


@pytest.mark.parametrize("fault", CI)
@pytest.mark.found
def test_five_faults_are_found(fault: str, tmp_path: Path) -> None:
    _found(fault, tmp_path)


@pytest.mark.parametrize("fault", [name for name in BY_NAME if name not in CI])
@pytest.mark.slow
def test_all_others_are_found(fault: str, tmp_path: Path) -> None:
    _found(fault, tmp_path)


@pytest.mark.slow
def test_without_a_fault_the_same_run_is_clean(tmp_path: Path) -> None:
    summary = soak_until_found(case(""), tmp_path)
    assert summary["verdict"] == "CLEAN", summary["reasons"]


def _found(fault: str, folder: Path) -> None:
    summary = soak_until_found(case(fault), folder)
    assert summary["verdict"] == "CORRUPT", summary["reasons"]
