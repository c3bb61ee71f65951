"""A run over several servers: the worst of them is the run's verdict, and not with every one it can go on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from soak.run.continuity import Gap
from soak.run.exit_code import ExitCode
from soak.run.succession import MOST_SERVERS, refuse_other_geometry, refuse_turns, told_together
from soak.sglang.preflight import TargetUnusable
from tests.survival.in_memory import GEOMETRY, NOW, TARGET
from tests.survival.runs import config


def summary(verdict: str, code: int, name: str, **more: Any) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "exit_code": code,
        "reasons": [f"why of {name}"],
        "fingerprint": {"model_path": name},
        "probes": {"valid": 7},
        "worst_probe": name,
        "incidents": [f"incident of {name}"],
        "started_at": f"start of {name}",
        "ended_at": f"end of {name}",
        "duration_s": 5.0,
        "first_index": 3,
        **more,
    }


def test_one_server_is_told_as_it_is() -> None:
    one = summary("CLEAN", 0, "a")
    assert told_together([one]) == {**one, "earlier_servers": []}


@pytest.mark.parametrize(
    ("verdicts", "codes", "verdict", "code"),
    [
        (("CLEAN", "CLEAN"), (0, 0), "CLEAN", ExitCode.CLEAN),
        (("CORRUPT", "CLEAN"), (1, 0), "CORRUPT", ExitCode.CORRUPT),
        (("CLEAN", "CALIBRATING"), (0, 3), "CALIBRATING", ExitCode.INCONCLUSIVE),
        (("SUSPECT", "VACUOUS"), (1, 3), "SUSPECT", ExitCode.CORRUPT),
        (("CLEAN", "CLEAN"), (5, 4), "CLEAN", ExitCode.TARGET),
        (("CORRUPT", "CALIBRATING"), (1, 130), "CORRUPT", ExitCode.INTERRUPTED),
    ],
)
def test_the_worst_is_the_runs(
    verdicts: tuple[str, str], codes: tuple[int, int], verdict: str, code: ExitCode
) -> None:
    first, last = (summary(v, c, name) for v, c, name in zip(verdicts, codes, "ab", strict=True))
    told = told_together([first, last])
    assert (told["verdict"], told["exit_code"]) == (verdict, code)
    assert told["earlier_servers"] == [first]
    assert told["fingerprint"] == last["fingerprint"], "the sections are about the last one"
    assert told["started_at"] == "start of a"
    assert told["duration_s"] == 10.0
    assert set(told["incidents"]) == {"incident of a", "incident of b"}
    assert told["worst_probe"] == ("a" if verdicts[0] == verdict else "b")
    assert any("model_path: a -> b" in reason for reason in told["reasons"])
    assert "of that server: why of a" in told["reasons"]
    assert "why of b" in told["reasons"]


def test_a_plan_of_another_geometry_is_not_gone_on_with() -> None:
    loaded = config("http://127.0.0.1:1")
    spec = loaded.resolve(GEOMETRY)
    refuse_other_geometry(loaded, spec, TARGET)
    smaller = replace(GEOMETRY, max_total_tokens=150_000)  # measured from free memory at each start
    refuse_other_geometry(loaded, spec, replace(TARGET, geometry=smaller))
    for geometry, words in (
        (replace(GEOMETRY, max_total_tokens=90_000), "max_total_tokens: 200000 -> 90000"),
        (replace(GEOMETRY, chunk=512), "chunk"),
        (replace(GEOMETRY, vocab_size=1000), "vocab_size"),
    ):
        with pytest.raises(TargetUnusable, match=words):
            refuse_other_geometry(loaded, spec, replace(TARGET, geometry=geometry))


def test_turns_are_told_from_restarts() -> None:
    now, mine = time.monotonic(), NOW.fingerprint.digest()
    at_once, later = Gap(now, now, True, ""), Gap(now - 20, now, True, "")
    refuse_turns(TARGET, ["other"], at_once)
    refuse_turns(TARGET, [mine, "other"], later)  # an upgrade that was taken back
    with pytest.raises(TargetUnusable, match="take turns"):
        refuse_turns(TARGET, [mine, "other"], at_once)
    with pytest.raises(TargetUnusable, match=f"{MOST_SERVERS} different servers"):
        refuse_turns(TARGET, [str(n) for n in range(MOST_SERVERS)], later)
