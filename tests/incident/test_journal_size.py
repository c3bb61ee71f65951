"""A million prompts of 1,000 tokens with 64 returned: the size of the file, and a cost that does not grow."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.incident.journalled import KEEP, Run
from tests.incident.test_journal import until

MILLION = 1_000_000
PART = 50_000


@pytest.mark.slow
def test_a_million_prompts_fit_into_a_gigabyte_at_a_flat_cost(tmp_path: Path) -> None:
    run = Run(tmp_path / "journal.sqlite", keep=replace(KEEP, bytes=4 << 30))
    took = []
    for first in range(0, MILLION, PART):
        begun = time.process_time()
        for at in range(first, first + PART, 5000):
            run.long_load(5000, first=at)
            until(lambda done=at + 5000: run.journal.written >= done, within_s=60)  # type: ignore[misc]
        took.append(time.process_time() - begun)
    run.journal.close()
    assert run.journal.dropped == 0
    assert run.path.stat().st_size <= 1e9
    assert sorted(took[-5:])[2] < 2 * sorted(took[:5])[2]
