"""kill -9 in the middle of everything: what was in force is undone, by whoever comes first."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from soak.chaos.ledger import ledgers, read_ledger
from soak.sglang.exchange import GenerateRequest
from tests.sglang.misbehaving import Behaviour, Seen, serving
from tests.survival.server import Server

from .running import LIGHT

PAUSED = {"abort": "pause-abort", "retract": "pause-retract", "in_place": "pause-in-place"}
TAKEN_DOWN = ("killed", "restarted", "rolled")
# The first call takes the server down and hangs, as a restart does that is cut off; the next brings it up.
RESTART = 'if [ -e "$0.once" ]; then rm -f "$0"; else touch "$0" "$0.once"; exec sleep 20; fi'


@dataclass
class Other:
    """A server that is only acted upon. down: the file that is there while it is down."""

    down: Path
    url: str = ""
    seen: Seen = field(default_factory=Seen)

    @property
    def paused(self) -> bool:
        controls = [path for path, _ in self.seen.controls if "generation" in path]
        return bool(controls) and controls[-1] == "/pause_generation"

    def as_target(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "disruptive": True,
            "ready_within": "3s" if self.down.name in ("restarted", "rolled") else "20s",
            "restart": ["sh", "-c", RESTART, str(self.down)],
            "kill": ["touch", str(self.down)],
            "start": ["rm", "-f", str(self.down)],
        }

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async def answer(_: web.Request) -> web.Response:
            if self.down.exists():
                return web.Response(status=503)
            return web.json_response({"version": "0.5.18", "model_path": "m"})

        routes = {"/server_info": answer, "/model_info": {}, "/health": answer}
        async with serving(seen=self.seen, routes=routes) as self.url:
            yield


def experiment(main: str, others: dict[str, Other]) -> dict[str, Any]:
    pauses = [
        {"do": "pause", "mode": mode, "target": name, "at": "10ms", "for": "10m"}
        for mode, name in PAUSED.items()
    ]
    return {
        "experiment": "everything",
        "targets": {"server": {"url": main}} | {name: other.as_target() for name, other in others.items()},
        "soak": {**LIGHT, "load": {**LIGHT["load"], "rate": 10}},
        "blast_radius": {"at_once": 20},
        "witnesses": 1,
        "witness_tokens": 64,
        "stop_when": {"error_share": None},
        "actions": [
            *pauses,
            {"do": "kill", "target": "killed", "at": "10ms", "for": "10m"},
            {"do": "restart", "target": "restarted", "at": "10ms"},
            {"do": "rolling-restart", "targets": ["rolled"], "at": "10ms"},
            {"do": "latency", "at": "10ms", "for": "10m", "delay": 1},
            {"do": "slow-reader", "at": "10ms", "for": "10m", "bytes_per_second": 1000000},
            {"do": "abort-storm", "at": "10ms", "prompts": 4, "tokens": 77, "after": [600000, 600000]},
        ],
    }


@dataclass
class Everything:
    """What is in force, seen from the servers."""

    main: Server
    others: dict[str, Other]
    folder: Path

    def in_force(self) -> bool:
        return (
            all(self.others[name].paused for name in PAUSED.values())
            and all(self.others[name].down.exists() for name in TAKEN_DOWN)
            and len(self.main.left) >= 4
            and len(self.kept()) == 10
        )

    def undone(self) -> bool:
        return (
            not any(other.paused or other.down.exists() for other in self.others.values())
            and not self.main.left
            and not ledgers(self.folder)
        )

    def kept(self) -> list[str]:
        return [entry.what for path in ledgers(self.folder) for entry in read_ledger(path).in_force]


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.02)


@asynccontextmanager
async def soak(words: Sequence[str], ledger: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "soak", "chaos", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "SOAK_CHAOS_LEDGER": str(ledger), "COLUMNS": "2000"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(words: Sequence[str], ledger: Path) -> tuple[int, str]:
    async with soak(words, ledger) as process:
        text, _ = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode is not None
        return process.returncode, text.decode()


def the_storm(server: Server) -> Callable[[GenerateRequest, int], Behaviour | None]:
    return lambda wanted, _: server.never_ends if len(wanted.prompts[0]) == 77 else None


@pytest.mark.parametrize("by", ["watchdog", "stop", "next-start", "stop-alive"])
async def test_every_action_is_undone(tmp_path: Path, by: str) -> None:
    main = Server()
    main.spoil = the_storm(main)
    others = {name: Other(tmp_path / name) for name in (*PAUSED.values(), *TAKEN_DOWN)}
    ledger = tmp_path / "ledger"
    everything = Everything(main, others, ledger)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(main.listening())
        for other in others.values():
            await stack.enter_async_context(other.listening())
        path = tmp_path / "everything.yaml"
        path.write_text(yaml.safe_dump(experiment(url, others)))
        words = ["run", str(path), "--out", str(tmp_path / "out")]
        async with soak([*words, *([] if by == "watchdog" else ["--no-watchdog"])], ledger) as process:
            try:
                await until(everything.in_force)
            except TimeoutError:
                process.kill()
                told = (await process.communicate())[0].decode()
                raise AssertionError(f"{everything.kept()}, {everything.main.left}: {told}") from None
            proxied = [entry for entry in everything.kept() if entry in ("latency", "slow-reader")]
            assert len(proxied) == 2
            if by == "stop-alive":
                code, text = await said(["stop"], ledger)
                assert code == 0, text
                assert "ending everything" in text
                assert await asyncio.wait_for(process.wait(), 20) == 130
            else:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
        if by == "watchdog":
            await until(everything.undone)
        elif by == "stop":
            assert not everything.undone()
            code, text = await said(["list"], ledger)
            assert "is dead, and has left this in force" in text
            assert text.count("since") == 10
            code, text = await said(["stop"], ledger)
            assert code == 0, text
            assert text.count("undone:") == 10
        elif by == "next-start":
            main.spoil = lambda _wanted, _number: None
            short = experiment(url, others) | {
                "experiment": "short",
                "actions": [{"do": "latency", "at": "10ms", "for": "10ms"}],
                "cool_down": "10ms",
            }
            path.write_text(yaml.safe_dump(short))
            code, text = await said(["run", str(path), "--out", str(tmp_path / "next")], ledger)
            assert text.count("undone:") == 10, text
            assert code == 0, text
        assert everything.undone()
        assert main.seen.aborted, "by exact rid"
        assert not any("pause" in control for control, _ in main.seen.controls)


async def test_what_cannot_be_undone_is_said_and_stays(tmp_path: Path) -> None:
    """A paused server that is gone: stop says so, and the next start refuses."""
    other = Other(tmp_path / "down")
    ledger = tmp_path / "ledger"
    path = tmp_path / "e.yaml"
    main = Server()
    async with main.listening() as url:
        async with other.listening():
            said_of = experiment(url, dict.fromkeys((*PAUSED.values(), *TAKEN_DOWN), other))
            said_of["actions"] = said_of["actions"][:1]
            path.write_text(yaml.safe_dump(said_of))
            words = ["run", str(path), "--out", str(tmp_path / "out")]
            async with soak([*words, "--no-watchdog"], ledger) as process:
                await until(lambda: other.paused)
                process.kill()
                await process.wait()
        code, text = await said(["stop"], ledger)
        assert code == 6, text
        assert "STILL IN FORCE: pause on pause-abort" in text
        code, text = await said(words, ledger)
        assert code == 6, text
        assert "cannot be undone" in text
