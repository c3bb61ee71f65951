"""Every fault of the simulator: handed on as a bundle, reproduced elsewhere, shrunk, and said by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.incident.bundle import read_bundle, write_bundle
from soak.runners.faults import FAULTS
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import examine
from tests.incident.circle import command, replay, simulator
from tests.incident.plays import PLAYS, UNREACHABLE
from tests.incident.traces import about

TRIES = 5  # of a script, where two requests have to meet


def test_every_fault_has_a_play_or_a_reason() -> None:
    assert {fault.name for fault in FAULTS} == set(PLAYS) | set(UNREACHABLE)


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLAYS)
async def test_from_a_bundle_to_a_script(fault: str, tmp_path: Path) -> None:
    play = PLAYS[fault]
    trace = play.make()
    bundle, small, script = (tmp_path / name for name in ("bundle", "small", "repro.py"))
    emit = ("--emit", script) if play.scripted else ()
    async with simulator(fault, **play.settings) as url:
        async with SGLangClient(url) as client:
            target = await examine(client)
        write_bundle(bundle, trace, about(fingerprint=target.fingerprint.as_dict()))
        there = ("--bundle", bundle, "--target", url, "--speed", "max")
        code, said = await replay(*there, "--repeat", "3")
        assert code == 1, said
        code, said = await replay(*there, "--minimize", "--budget", "3m", "--to", small, *emit)
        assert code == 1, said
        shrunk, _ = read_bundle(small)
        assert len(shrunk.sent) <= len(trace.sent)
        tried = [await command(script, url) for _ in range(TRIES if play.scripted else 0)]
        assert not play.scripted or any(code == 1 for code, _ in tried), tried
    async with simulator(fault, planted=False, **play.settings) as url:
        code, said = await replay("--bundle", small, "--target", url, "--speed", "max", "--anyway")
        assert code in (0, 3), said
        assert "reproduced 0 of" in said
        if play.scripted:
            code, said = await command(script, url)
            assert code in (0, 2), said  # 2: what was cached only by mistake is not cached here
