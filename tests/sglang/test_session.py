"""A session's names: fixed width, and never those of another process that runs under the same run id."""

from __future__ import annotations

import asyncio

import pytest

from soak.sglang.client import SGLangClient
from soak.sglang.session import Session


def test_processes_of_one_run_share_no_rid_and_no_namespace() -> None:
    client = SGLangClient("http://127.0.0.1:1")
    one, other = Session(client, "0123456789ab"), Session(client, "0123456789ab")
    names = [[session.rid(), session.namespace(), session.rid()] for session in (one, other)]
    assert len({*names[0], *names[1]}) == 6
    rids = [name for pair in names for name in (pair[0], pair[2])]
    assert len({len(rid) for rid in rids}) == 1
    assert all(rid.startswith("soak-0123456789ab-") for rid in rids)


class Paused:
    """Remembers what it was told; ``deaf``: so many times it does not hear that it may go on."""

    def __init__(self, deaf: int = 0) -> None:
        self.told: list[str] = []
        self.deaf = deaf

    async def pause(self, mode: str) -> tuple[bool, str]:
        self.told.append(mode)
        return True, ""

    async def continue_(self) -> tuple[bool, str]:
        self.told.append("on")
        self.deaf -= 1
        return self.deaf < 0, ""


def session_of(client: Paused) -> Session:
    return Session(client, "0123456789ab")  # type: ignore[arg-type]


async def test_a_pause_ends_whatever_happens_and_one_at_a_time() -> None:
    client = Paused()
    session = session_of(client)
    with pytest.raises(RuntimeError):
        async with session.held("retract") as held:
            assert held
            raise RuntimeError
    assert client.told == ["retract", "on"]

    async def hold() -> None:
        async with session.held("in_place"):
            await asyncio.sleep(0)

    await asyncio.gather(*(hold() for _ in range(3)))
    assert client.told[2:] == ["in_place", "on"] * 3


async def test_a_server_that_did_not_hear_it_is_told_at_the_end() -> None:
    client = Paused(deaf=1)
    session = session_of(client)
    async with session.held("in_place"):
        await session.let_go_on()
    assert client.told == ["in_place", "on", "on"]
    assert await session.abort_outstanding(0.1) == 0
    assert client.told == ["in_place", "on", "on"]
    client = Paused(deaf=2)
    session = session_of(client)
    async with session.held("in_place"):
        await session.let_go_on()
    await session.abort_outstanding(0.1)
    assert client.told == ["in_place", "on", "on", "on"]
