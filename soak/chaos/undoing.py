"""Undoes what a dead process left in force, from its ledger: continues, starts again, takes back.

Each way can be gone twice without harm. It asks nobody's leave, since all of it gives back what was taken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.chaos import ledger
from soak.chaos.commands import run_command
from soak.chaos.ledger import Entry, Kept, LedgerUnusable, Undo, forget, ledgers, owned, taken_over
from soak.config import ConfigError
from soak.config.target import Target
from soak.drive.doing import NotDoneError, resumed
from soak.run.trail import TRAIL_NAME, PreflightTrail, read_trail
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import TargetUnusable, server_now
from soak.sglang.session import rid_of

_LOOK_S = 0.25
_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Undone:
    """One entry, and what became of it."""

    experiment: str
    entry: Entry
    ok: bool
    words: str

    def line(self) -> str:
        """For a person."""
        state = "undone" if self.ok else "STILL IN FORCE"
        return f"{state}: {self.entry.what} on {self.entry.target} ({self.experiment}): {self.words}"


def client_of(undo: Undo) -> SGLangClient:
    """A client of the server that an entry names. Raises ConfigError."""
    file = Path(undo.api_key_file) if undo.api_key_file else None
    target = Target(url=undo.url, api_key_env=undo.api_key_env or "SGLANG_API_KEY", api_key_file=file)
    return SGLangClient(target.url, api_key=target.api_key(), max_connections=32)


async def serves(client: SGLangClient) -> bool:
    """Whether a server is there, has loaded, and says that it is well."""
    try:
        await server_now(client)
    except TargetUnusable:
        return False
    return await client.healthy()


async def until_serving(client: SGLangClient, within_s: float) -> bool:
    """Wait until it serves; whether it did within that time."""
    deadline = time.monotonic() + within_s
    while not await serves(client):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def undo(how: Undo) -> tuple[bool, str]:
    """Undo one thing; whether it is undone, and words. Never raises for what a server or a command can do."""
    if how.how == ledger.NOTHING:
        return True, "it ended with its process"
    try:
        async with client_of(how) as client:
            if how.how == ledger.CONTINUE:
                await resumed(client)
                return True, "continued"
            if how.how == ledger.START:
                return await _up_again(client, how)
            return await _take_back(client, how)
    except (ConfigError, NotDoneError) as error:
        return False, str(error)


async def _up_again(client: SGLangClient, how: Undo) -> tuple[bool, str]:
    """Start a server that was taken down, unless it comes up by itself in the time it is given.

    A command that was under way goes on without us: it may still take down what serves now.
    """
    settled = time.monotonic() + _SETTLE_S
    while await serves(client):
        if time.monotonic() >= settled:
            return True, "it serves"
        await asyncio.sleep(_LOOK_S)
    if how.wait_s and await until_serving(client, how.wait_s):
        return True, "it came up by itself"
    ok, words = await run_command(how.argv, how.within_s, None)
    if ok and await until_serving(client, how.within_s):
        return True, f"{words}, and it serves"
    return False, words if not ok else f"{words}, and it did not serve within {how.within_s:g} s"


async def _take_back(client: SGLangClient, how: Undo) -> tuple[bool, str]:
    out = Path(how.out)
    await PreflightTrail(out, lambda _words: None).take_back(client)
    if not await asyncio.to_thread((out / TRAIL_NAME).exists):
        return True, "nothing had been sent"
    left = read_trail(out)
    taken = await client.abort_all_of(rid_of(left.session, serial) for serial in left.rids)
    return taken == len(left.rids), f"{taken} of {len(left.rids)} rids of ours taken back"


async def undo_ledger(path: Path, say: Callable[[str], None]) -> list[Undone]:
    """All that one ledger has in force, side by side: nobody waits for another's restart.

    Raises LedgerUnusable.
    """
    with taken_over(path) as kept:

        async def one(entry: Entry) -> Undone:
            ok, words = await undo(entry.undo)
            undone = Undone(kept.experiment, entry, ok, words)
            if ok:
                forget(path, [entry.number])
            say(undone.line())
            return undone

        if not kept.in_force:
            forget(path, [])
        return list(await asyncio.gather(*(one(entry) for entry in kept.in_force)))


async def undo_all_left(folder: Path, say: Callable[[str], None]) -> list[Undone]:
    """All that dead processes have left; what living ones have in force is theirs."""
    done = []
    for path in ledgers(folder):
        if not owned(path):
            done += await undo_ledger(path, say)
    return done


def left_by_now(folder: Path) -> list[tuple[Kept, bool]]:
    """Every ledger there is, and whether a living process has it. Raises LedgerUnusable."""
    found = []
    for path in ledgers(folder):
        alive = owned(path)
        try:
            found.append((ledger.read_ledger(path), alive))
        except LedgerUnusable:
            if path.exists():  # else it came to its end just now
                raise
    return found
