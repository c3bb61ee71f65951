"""The whole bench, as `soak bench detect` runs it: an hour or so. CI runs the reduced one by the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from soak.bench.detect.bench import FULL, bench, picture
from soak.bench.detect.outcome import BOOTSTRAPPED


@pytest.mark.slow
def test_every_fault_is_found_and_50000_clean_probes_alarm_nowhere(tmp_path: Path) -> None:
    """At A = 1e6 and p0 <= 0.01, from 5,120 clean probes of each kind of numerics."""
    done = bench(tmp_path, FULL, jobs=os.cpu_count() or 1, command="soak bench detect", date="now", say=print)
    assert done.lost == []
    for clean in done.found.clean.values():
        assert clean.recorded.probes >= 5000
        assert clean.extended.probes == BOOTSTRAPPED
        assert clean.extended.alarms == {}
    for length in done.found.clean["production"].run_lengths:
        assert length.mean >= length.guaranteed
    assert "alarm at probe" in picture(tmp_path, FULL)
