"""Does to a server what HTTP can: flush, pause, reload, and prompts of our own made to get in its way.

An experiment does it, and a replay does it again: the prompts depend on the settings alone. Everything sent
goes through the session, which can take all of it back; nobody else's request is ever named. A pause aborts
or holds up everybody's requests, so whoever calls must be allowed to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from soak.drive.deed import ABORT_STORM, FLUSH, PAUSE, PRESSURE, RELOAD, RETRACTION, Settings
from soak.plan.words import Draw, raw_words
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, TokenIds
from soak.sglang.server_metrics import LOADS, parse_loads
from soak.sglang.session import Session

_LOOK_S = 0.01
_RUNNING_S = 10.0  # how long prompts may take to be past their prefill
_CONTINUE_TRIES = 5
_LATE_S = (0.05, 0.2, 0.02, 0.6)  # how long after something runs a retraction pauses, try by try

Leash = Callable[[str], AbstractContextManager[object]]
"""Told of what is about to be in force, before it is, and that it is over."""


def unleashed(_name: str) -> AbstractContextManager[object]:
    """Where nothing is written down."""
    return nullcontext()


class NotDoneError(Exception):
    """The server refused, or did not answer; the message says which."""


@dataclass(frozen=True, slots=True)
class Own:
    """A prompt that a deed sent, and what came back."""

    ids: TokenIds
    answer: Answer


def prompts_of(settings: Settings, ordinary: tuple[int, int]) -> list[TokenIds]:
    """The prompts of a deed: ``prompts`` of ``tokens`` ids each, all in [low, high), by its settings alone.

    With ``stems``, each begins as one of so many others of ``stem_tokens`` ids by ``stem_seed`` does.
    """
    seed, tokens = _whole(settings, "seed"), _whole(settings, "tokens")
    made = [drawn_ids(seed, number, tokens, ordinary) for number in range(_whole(settings, "prompts"))]
    stems = _whole(settings, "stems")
    if not stems:
        return made
    stem_seed, stem = _whole(settings, "stem_seed"), _whole(settings, "stem_tokens")
    return [
        np.concatenate([drawn_ids(stem_seed, number % stems, stem, ordinary), own])
        for number, own in enumerate(made)
    ]


def drawn_ids(seed: int, number: int, tokens: int, ordinary: tuple[int, int]) -> TokenIds:
    """Token ids in [low, high), by seed and number alone; shape (tokens,)."""
    low, high = ordinary
    words = raw_words(seed, "deed prompt", number, tokens) % np.uint64(high - low)
    return words.astype(np.int32) + np.int32(low)


def _whole(settings: Settings, name: str) -> int:
    return int(settings.get(name, 0))


async def flush(client: SGLangClient, settings: Settings) -> str:
    """Empty the cache; the server's words. Raises NotDoneError, also for one that is never idle."""
    return _done(*await client.flush(_whole(settings, "within_ms") / 1000))


async def reload(client: SGLangClient, settings: Settings) -> str:
    """Load the weights that the server has once more, from where it has them. Raises NotDoneError."""
    path = settings.get("model_path") or await _model_path(client)
    return _done(*await client.reload(str(path), _whole(settings, "within_ms") / 1000))


async def _model_path(client: SGLangClient) -> str:
    for path in ("/server_info", "/get_server_info", "/model_info"):
        _, said, _ = await client.get_json(path)
        if isinstance(said, dict) and isinstance(said.get("model_path"), str):
            return str(said["model_path"])
    raise NotDoneError("the server does not say where its weights are: give model_path")


def _done(ok: bool, words: str) -> str:
    if not ok:
        raise NotDoneError(words)
    return words


@asynccontextmanager
async def paused(client: SGLangClient, mode: str) -> AsyncIterator[None]:
    """While inside, the server generates nothing. Raises NotDoneError; continues it in any case."""
    try:
        _done(*await client.pause(mode))
        yield
    finally:
        await resumed(client)


async def resumed(client: SGLangClient) -> None:
    """End a pause; a server that was not paused minds nothing. Raises NotDoneError after some tries."""
    words = ""
    for _ in range(_CONTINUE_TRIES):
        ok, words = await client.continue_()
        if ok:
            return
        await asyncio.sleep(0.5)
    raise NotDoneError(f"it could not be continued: {words}")


async def decode_beside(
    session: Session, prompts: Sequence[TokenIds], settings: Settings, timeout_s: float
) -> list[Own]:
    """All prompts at once, each generating; with logprobs, to hold what was served against cold."""
    answers = await asyncio.gather(
        *(
            session.generate(
                [ids],
                max_new_tokens=_whole(settings, "new_tokens"),
                return_logprob=True,
                timeout_s=timeout_s,
            )
            for ids in prompts
        )
    )
    return [Own(ids, answer) for ids, (answer,) in zip(prompts, answers, strict=True)]


async def fill(
    session: Session, prompts: Sequence[TokenIds], settings: Settings, timeout_s: float
) -> list[Own]:
    """One request with all prompts: together they want more of the pool than there is."""
    answers = await session.generate(
        prompts, max_new_tokens=_whole(settings, "new_tokens"), timeout_s=timeout_s
    )
    return [Own(ids, answer) for ids, answer in zip(prompts, answers, strict=True)]


async def storm(
    session: Session, prompts: Sequence[TokenIds], settings: Settings, timeout_s: float
) -> list[Own]:
    """All prompts at once, each taken back after a time of its own, by its own rid."""
    low, high, seed = (_whole(settings, name) for name in ("after_low_ms", "after_high_ms", "seed"))

    async def one(number: int, ids: TokenIds) -> Own:
        rid = session.rid()
        asked = asyncio.ensure_future(
            session.generate(
                [ids], rids=(rid,), max_new_tokens=_whole(settings, "new_tokens"), timeout_s=timeout_s
            )
        )
        try:
            await asyncio.wait({asked}, timeout=Draw(seed, "deed abort", number).between(low, high) / 1000)
            if not asked.done():
                await session.abort([rid])
            (answer,) = await asked
        finally:
            asked.cancel()
        return Own(ids, answer)

    return list(await asyncio.gather(*(one(number, ids) for number, ids in enumerate(prompts))))


async def until_running(client: SGLangClient, least: int, within_s: float = _RUNNING_S) -> None:
    """Wait until so many requests run; a server that does not say is given a moment."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        _, said, _ = await client.get_json(LOADS)
        loads = parse_loads(said)
        if loads is None or loads.running is None or loads.running >= least:
            return
        await asyncio.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Hands:
    """What a deed is done with. client: for control; session: for prompts; made: its prompts.

    leash: told before anything is in force; in_force: told once a pause is.
    """

    client: SGLangClient
    session: Session
    made: Sequence[TokenIds]
    timeout_s: float
    leash: Leash = unleashed
    in_force: Callable[[], None] = lambda: None


async def do(name: str, settings: Settings, hands: Hands) -> tuple[str, list[Own]]:
    """Do one of PLAYABLE from its begin to its end; words, and what its prompts came to.

    Raises NotDoneError. Cancelled, it ends what is in force first.
    """
    if name == PAUSE:
        return await _pause(name, settings, hands, 0.0)
    if name == RETRACTION:
        return await _retraction(settings, hands)
    with hands.leash(name):
        if name == FLUSH:
            return await flush(hands.client, settings), []
        if name == RELOAD:
            return await reload(hands.client, settings), []
        if name not in (PRESSURE, ABORT_STORM):
            raise ValueError(f"{name}: cannot be done over HTTP alone")
        work = fill if name == PRESSURE else storm
        own = await work(hands.session, hands.made, settings, hands.timeout_s)
    return _outcomes(own), own


async def _retraction(settings: Settings, hands: Hands) -> tuple[str, list[Own]]:
    """Until one of the prompts was retracted: a pause may come before they run, or after they have ended."""
    words, all_own = "", []
    for late_s in _LATE_S:
        words, own = await _pause(RETRACTION, settings, hands, late_s)
        all_own += own
        if any(one.answer.num_retractions for one in own):
            break
    return words, all_own


async def _pause(name: str, settings: Settings, hands: Hands, late_s: float) -> tuple[str, list[Own]]:
    beside = asyncio.ensure_future(
        decode_beside(hands.session, hands.made, settings, hands.timeout_s) if hands.made else _nothing()
    )
    try:
        if hands.made:
            await until_running(hands.client, 1)
            await asyncio.sleep(late_s)
        with hands.leash(name):
            async with paused(hands.client, str(settings.get("mode", "abort"))):
                hands.in_force()
                await asyncio.sleep(_whole(settings, "held_ms") / 1000)
        own = await beside
    finally:
        beside.cancel()
    return _outcomes(own), own


async def _nothing() -> list[Own]:
    return []


def _outcomes(own: Sequence[Own]) -> str:
    """How many prompts came to what, and how many of them were retracted."""
    if not own:
        return ""
    counts: dict[str, int] = {}
    for one in own:
        counts[one.answer.outcome.value] = counts.get(one.answer.outcome.value, 0) + 1
    retracted = sum(one.answer.num_retractions > 0 for one in own)
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return f"{len(own)} prompts: {words}" + (f"; {retracted} retracted" if retracted else "")
