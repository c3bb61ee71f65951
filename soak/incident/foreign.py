"""Whose answer is known, judged once more: was a canary, or a JSON schema, answered with another's answer?

A canary's own answer is not that of then, as a replay sends other ids of the same pattern: each is asked
alone, twice, when all load is over. What load was answered meanwhile is then held against these. A schema
makes its answer whatever the ids are.
"""

from __future__ import annotations

import numpy as np

from soak.incident.player import Player
from soak.incident.trace import Origin
from soak.oracle.canaries import Canaries
from soak.oracle.passes import Passes
from soak.plan import strict
from soak.plan.shapes import canary

_ALONE = 2  # times: as often as an answer must be seen to count as a canary's own


async def foreign_answers(passes: Passes, player: Player) -> list[str]:
    """In words, answers of this replay that are another prompt's. Raises PassFailedError."""
    wrong = _wrong_constants(player)
    return wrong or await _foreign_canaries(passes, player)


def _wrong_constants(player: Player) -> list[str]:
    """In words, JSON answers that their schema did not make."""
    found = []
    for sent, answer in zip(player.trace.sent, player.answers, strict=True):
        if sent.code and answer is not None and answer.ok and answer.text is not None:
            words = strict.wrong(answer.text, sent.code, answer.finish_reason == "stop")
            if words:
                found.append(f"load request {sent.index}, part {sent.part}: its JSON answer {words}")
    return found


async def _foreign_canaries(passes: Passes, player: Player) -> list[str]:
    answered = [
        (sent, ids.astype(np.int32).tobytes(), ids, answer)
        for sent, ids, answer in zip(player.trace.sent, player.ids, player.answers, strict=True)
        if sent.origin is Origin.LOAD and sent.shape == canary.NAME
        if ids is not None and answer is not None and answer.ok
    ]
    keys: dict[bytes, int] = {}
    books: Canaries[None] = Canaries()
    for sent, name, ids, _ in answered:
        if name in keys:
            continue
        keys[name] = len(keys)
        for _ in range(_ALONE):
            await player.gate(len(ids) + sent.max_new_tokens)
            own = await passes.generate("alone", ids, sent.max_new_tokens, 0.0, passes.fresh())
            books.observe(keys[name], own, "asked alone", None)
    found: list[str] = []
    for sent, name, _, answer in answered:
        where = f"load request {sent.index}, step {sent.step}, part {sent.part}"
        found += [words for words, _ in books.observe(keys[name], answer.output_ids, where, None)]
    return found
