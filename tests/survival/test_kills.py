"""A soak that is killed, told to stop, or told twice: what it leaves behind, and how it goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.config import ConfigError
from soak.incident.journal_reader import JournalReader
from soak.run.exit_code import ExitCode
from soak.run.resuming import earlier
from soak.run.trail import PREFLIGHT_NAME, TRAIL_NAME, PreflightTrail, Trail, read_trail
from soak.sglang.client import SGLangClient
from tests.sglang.misbehaving import whole
from tests.survival.child import soaking
from tests.survival.runs import Running, config
from tests.survival.server import Server, every, load_only


async def until(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - it is another process that brings it about
            await asyncio.sleep(0.02)


def indices(journal: Path) -> list[tuple[int, int]]:
    """(index, number of processes that sent it) of all load in a journal."""
    with sqlite3.connect(journal) as db:
        return db.execute(
            "SELECT idx, count(DISTINCT session) FROM prompts WHERE origin = 0 GROUP BY idx ORDER BY idx"
        ).fetchall()


async def test_after_kill_9_a_resumed_run_repeats_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    server = Server()
    server.spoil = load_only(every(5, server.never_ends))
    async with server.listening() as url:
        async with soaking(url, tmp_path, "--resume") as first:
            await until(lambda: len(server.left) > 4)
            first.process.kill()
            await first.process.wait()
        left, run = set(server.left), json.loads((tmp_path / "out" / "run.json").read_text())
        begun = read_trail(tmp_path / "out").index
        assert len(left) > 4, "the server runs on with them"
        async with soaking(url, tmp_path, "--resume") as second:
            await second.says(f"resuming run {run['run_id']}")
            await until(lambda: not left & server.left)
            before = server.requests
            await until(lambda: server.requests > before + 60)
            second.process.terminate()
            assert await second.ended() == ExitCode.INTERRUPTED
        assert server.left == set()
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == run, "the same plan, the same nonce"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["first_index"] == begun + 1
    sent = indices(tmp_path / "journal.sqlite")
    assert max(index for index, _ in sent) > begun
    assert [index for index, processes in sent if processes > 1] == []
    prefixes = {rid.rpartition("-")[0] for rid in server.seen.aborted if "preflight" not in rid}
    assert prefixes <= {r.rpartition("-")[0] for request in server.seen.requests for r in request.rids}


async def test_what_the_examination_had_under_way_is_taken_back_after_kill_9(tmp_path: Path) -> None:
    """A run that has no name yet: nothing but its preflight has been sent."""
    server = Server()
    well = server.small.generate
    server.small.generate = server.never_ends  # type: ignore[method-assign]
    async with server.listening() as url:
        async with soaking(url, tmp_path, "--resume") as first:
            await until(lambda: len(server.left) == 1)
            first.process.kill()
            await first.process.wait()
        (left,) = server.left
        assert left.startswith("soak-preflight-")
        assert not (tmp_path / "out" / "run.json").exists()
        server.small.generate = well  # type: ignore[method-assign]
        async with soaking(url, tmp_path, "--resume") as second:
            await until(lambda: not server.left)
            assert left in server.seen.aborted
            await until(lambda: server.requests > 25)
            assert not (tmp_path / "out" / PREFLIGHT_NAME).exists()
            second.process.terminate()
            assert await second.ended() == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    "said", [b"[]", b'{"rid": 1}', b'{"rid": ""}', b'{"rid": "s"}', b'{"rid": "soak-x"}']
)
async def test_only_rids_of_an_examination_are_taken_back_by_its_trail(said: bytes, tmp_path: Path) -> None:
    """An empty or a short rid would be the prefix of other people's requests."""
    (tmp_path / PREFLIGHT_NAME).write_bytes(said)
    with pytest.raises(ConfigError, match="not what a run leaves"):
        await PreflightTrail(tmp_path, print).take_back(SGLangClient("http://127.0.0.1:9"))


async def test_a_kill_between_two_questions_leaves_nothing_to_take_back(tmp_path: Path) -> None:
    client = SGLangClient("http://127.0.0.1:9")
    assert not await PreflightTrail(tmp_path, print).take_back(client)
    (tmp_path / PREFLIGHT_NAME).write_bytes(b"")
    assert not await PreflightTrail(tmp_path, print).take_back(client)


async def test_no_incident_is_lost_to_kill_9(tmp_path: Path) -> None:
    null = whole(lambda v: v["meta_info"]["output_token_logprobs"][1].__setitem__(0, None))
    server = Server(spoil=lambda wanted, n: null if wanted.return_logprob and wanted.max_new_tokens else None)
    load = {"served_share": 1.0, "shapes": {"decode-seeded": 1}}
    async with server.listening() as url:
        async with soaking(url, tmp_path, load={**config(url).load.model_dump(), **load}) as first:
            name = (await first.says(r"CORRUPT: .*\(alarm ([0-9a-f]{8})\)"))[1]
            first.process.kill()
            await first.process.wait()
        async with soaking(
            url, tmp_path, "--resume", load={**config(url).load.model_dump(), **load}
        ) as again:
            await again.says(f"still alarmed: .* until `soak ack {name}`")
            again.process.terminate()
            assert await again.ended() == ExitCode.INTERRUPTED
    reader = JournalReader(tmp_path / "journal.sqlite")
    assert name in {incident.id for incident in reader.incidents()}
    reader.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_run_with_a_summary_and_an_empty_server(
    number: signal.Signals, tmp_path: Path
) -> None:
    server = Server()
    server.spoil = load_only(every(5, server.never_ends))
    async with server.listening() as url, soaking(url, tmp_path) as child:
        await until(lambda: len(server.left) > 4)
        began = time.monotonic()
        child.process.send_signal(number)
        await until(lambda: not server.left)
        assert time.monotonic() - began < 8, "the server is rid of us long before the report is made"
        assert await child.ended() == ExitCode.INTERRUPTED
        assert server.left == set()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["interrupted"] is True


async def test_a_second_signal_waits_for_nothing_but_the_aborts(tmp_path: Path) -> None:
    server = Server()
    server.spoil = load_only(every(5, server.never_ends))
    async with server.listening() as url, soaking(url, tmp_path) as child:
        await until(lambda: len(server.left) > 4)
        for _ in range(2):
            child.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.01)
        assert await child.ended() == ExitCode.INTERRUPTED
        await until(lambda: server.left == set(), 5)


async def test_resuming_another_plan_is_refused_with_what_differs(tmp_path: Path) -> None:
    server = Server()
    state = {"duration": "60s", "state": str(tmp_path / "s.sqlite")}
    async with server.listening() as url:
        running = Running(config(url, run=state), tmp_path / "out")
        await running.until(lambda: server.requests > 40)
        running.stop.set()
        await running.end()
        other = Running(config(url, run={**state, "seed": 4}), tmp_path / "out", resume=True)
        with pytest.raises(ConfigError, match="seed: 3 -> 4"):
            await other.task


async def test_a_run_that_has_ended_is_not_resumed_over_its_summary(tmp_path: Path) -> None:
    server = Server()
    loaded = {"duration": "1s", "state": str(tmp_path / "s.sqlite")}
    async with server.listening() as url:
        await Running(config(url, run=loaded), tmp_path / "out", resume=True).end()
        again = Running(config(url, run=loaded), tmp_path / "out", resume=True)
        with pytest.raises(ConfigError, match="has come to its end"):
            await again.task


def test_resuming_needs_a_state_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.state"):
        earlier(config("http://127.0.0.1:1"), tmp_path)


def test_a_trail_says_what_may_be_on_the_server(tmp_path: Path) -> None:
    trail = Trail(tmp_path, "0123456789ab", print)
    trail.sending(1, 1)
    trail.sending(899_999_999, 900_000_001)
    trail.sending(7, 9)  # a shorter line leaves nothing of a longer one
    trail.begun(7)
    trail.probing(3)
    left = read_trail(tmp_path)
    assert (list(left.rids), left.index, left.probe, left.ended) == (
        [7, 8, 9], 7, 3, False,
    )  # fmt: skip
    trail.close(0)
    assert not read_trail(tmp_path).rids
    assert read_trail(tmp_path).ended


def test_a_trail_knows_the_last_index_that_sent_something_and_all_before_the_last(tmp_path: Path) -> None:
    trail = Trail(tmp_path, "0123456789ab", print)
    trail.begun(7)
    assert read_trail(tmp_path).index == -1  # nothing of it is on the server yet: it may be begun again
    trail.sending(1, 1)
    assert read_trail(tmp_path).index == 7
    trail.begun(8)  # refused, say: it sends nothing
    trail.begun(9)
    assert read_trail(tmp_path).index == 8


@pytest.mark.parametrize(
    "spoiled", [b"", b"{", b"[]", b'{"run_id": 1}', b'{"run_id":"a","session":"b","low":1,"high":99999999}']
)
def test_a_trail_that_is_none_is_refused(spoiled: bytes, tmp_path: Path) -> None:
    (tmp_path / TRAIL_NAME).write_bytes(spoiled)
    with pytest.raises(ConfigError):
        read_trail(tmp_path)


def test_a_trail_on_a_disk_that_refuses_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    trail = Trail(tmp_path, "0123456789ab", said.append)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("soak.run.trail.os.pwrite", full)
    for number in range(50):
        trail.sending(1, number + 1)
    assert len(said) == 1
    assert "No space left" in said[0]
