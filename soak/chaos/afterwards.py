"""What must hold when all is over: each named condition asked of the server, and what came of it.

A condition that could not be asked holds for nobody: it is neither held nor broken, and the report says why.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from soak.chaos.undoing import serves
from soak.chaos.witnesses import Seen, Witnesses, all_seen
from soak.drive import deed
from soak.drive.doing import Own
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest

_MOST_OWN = 32  # prompts of ours of one kind that are asked about


@dataclass(frozen=True, slots=True)
class Condition:
    """held: None where it could not be asked. of_memory: broken, it means that the cache is not true."""

    name: str
    held: bool | None
    words: str
    of_memory: bool = False
    seen: tuple[Seen, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {**asdict(self), "seen": [asdict(one) for one in self.seen]}


class Afterwards:
    """Asks. own: by action, what prompts of ours came to; touched: the targets that something was done to."""

    def __init__(
        self,
        witnesses: Witnesses,
        own: Mapping[str, Sequence[Own]],
        clients: Mapping[str, SGLangClient],
        touched: Sequence[str],
    ) -> None:
        self._witnesses, self._own, self._clients, self._touched = witnesses, own, clients, touched
        self._old: list[Seen] | None = None

    async def ask(self, name: str) -> Condition:
        """One of the conditions that an experiment can name."""
        match name:
            case "serves":
                return await self._serves()
            case "old-prefixes-cold":
                return _cold(await self._asked_old())
            case "old-prefixes-true":
                return _true(name, "prefixes written before the first action", await self._asked_old())
            case "retracted-like-cold":
                return await self._retracted()
            case "aborted-not-poisoned":
                return await self._aborted()
            case "fill-true":
                return await self._filled()
        raise ValueError(f"no condition {name!r}")

    async def _serves(self) -> Condition:
        broken = []
        for name in self._touched:
            client = self._clients[name]
            if not await serves(client):
                broken.append(f"{name} is not well")
            elif words := await _refuses(client):
                broken.append(f"{name} answers no prompt: {words}")
        words = "; ".join(broken) or f"{', '.join(self._touched)}: well, and answering"
        return Condition("serves", not broken, words)

    async def _asked_old(self) -> list[Seen]:
        """Once: whoever asks about a prefix writes it."""
        if self._old is None:
            self._old = await all_seen([self._witnesses.ask(one) for one in self._witnesses.planted])
        return self._old

    async def _retracted(self) -> Condition:
        """What a retracted request was told, and what it left, is what a cold pass says."""
        mine = [*self._own.get(deed.RETRACTION, ()), *self._own.get(deed.PRESSURE, ())]
        retracted = [own for own in mine if own.answer.ok and own.answer.num_retractions][:_MOST_OWN]
        if not retracted:
            return Condition(
                "retracted-like-cold",
                None,
                f"none of {len(mine)} prompts of ours was retracted",
                of_memory=True,
            )
        asked = []
        for number, own in enumerate(retracted):
            name = f"retracted {number}"
            if len(own.answer.output_logprobs):
                asked.append(self._witnesses.ask_served(f"{name}, as served", own))
            whole = np.concatenate([own.ids, own.answer.output_ids])
            asked.append(self._witnesses.ask(self._witnesses.of(f"{name}, what it left", whole)))
        seen = await all_seen(asked)
        return _true("retracted-like-cold", f"of {len(retracted)} retracted requests", seen)

    async def _aborted(self) -> Condition:
        """What an aborted request left of its prompt is what a cold pass says."""
        mine = [own for own in self._own.get(deed.ABORT_STORM, ()) if not own.answer.ok][:_MOST_OWN]
        if not mine:
            return Condition("aborted-not-poisoned", None, "no prompt of ours was aborted", of_memory=True)
        seen = await all_seen(
            [
                self._witnesses.ask(self._witnesses.of(f"aborted {number}", own.ids))
                for number, own in enumerate(mine)
            ]
        )
        return _true("aborted-not-poisoned", f"of {len(mine)} aborted prompts", seen)

    async def _filled(self) -> Condition:
        """What the prompts that filled the pool left there is what a cold pass says."""
        mine = [own for own in self._own.get(deed.PRESSURE, ()) if own.answer.ok][-_MOST_OWN:]
        if not mine:
            return Condition("fill-true", None, "no prompt of ours filled the pool", of_memory=True)
        seen = await all_seen(
            [
                self._witnesses.ask(self._witnesses.of(f"filler {number}", own.ids))
                for number, own in enumerate(mine)
            ]
        )
        return _true("fill-true", f"of {len(mine)} prompts that filled the pool", seen)


_BY_CHANCE = 8
"""With pages of one token, a prompt may begin with the first tokens of somebody else's; not with so many."""


async def _refuses(client: SGLangClient) -> str:
    """Why a small prompt is not answered, empty if it is."""
    rid = f"soak-chaos-{secrets.token_hex(8)}"
    (answer,) = await client.generate(
        GenerateRequest(
            prompts=(np.array([11, 12, 13], np.int32),),
            rids=(rid,),
            max_new_tokens=2,
            extra_key=rid,
            timeout_s=30.0,
        )
    )
    if not answer.outcome.settled:
        await client.abort(rid)
    return "" if answer.ok else f"{answer.outcome.value} {answer.detail}".strip()


def _cold(seen: Sequence[Seen]) -> Condition:
    asked = [one for one in seen if not one.failed]
    warm = [one for one in asked if one.cached > _BY_CHANCE]
    if not asked:
        return Condition("old-prefixes-cold", None, _unasked(seen), seen=tuple(seen))
    words = (
        f"{len(warm)} of {len(asked)} old prefixes are still cached, {warm[0].cached} tokens of one"
        if warm
        else f"all of {len(asked)} old prefixes are cold"
    )
    return Condition("old-prefixes-cold", not warm, words, seen=tuple(seen))


def _true(name: str, what: str, seen: Sequence[Seen]) -> Condition:
    asked = [one for one in seen if not one.failed]
    off = [one for one in asked if one.off]
    if not asked:
        return Condition(name, None, _unasked(seen), of_memory=True, seen=tuple(seen))
    host = sum(one.host > 0 for one in asked)
    from_host = f", {host} of them from the host tier" if host else ""
    cached = sum(one.cached > 0 for one in asked)
    words = f"{what}: {len(asked)} asked, {cached} were cached{from_host}"
    if off:
        words += f"; {len(off)} score otherwise than cold, first {off[0].name}: {off[0].off}"
    elif len(asked) < len(seen):
        words += f"; {len(seen) - len(asked)} could not be asked"
    return Condition(name, not off, words, of_memory=True, seen=tuple(seen))


def _unasked(seen: Sequence[Seen]) -> str:
    return f"nothing could be asked: {seen[0].failed}" if seen else "nothing had been planted before"
