"""Does it matter who is generated beside a prompt? The same prompt continued greedily, in a batch and alone.

No cache has a part in it, and no prefill can show it: what a captured decode graph, or a decode kernel, does
to one row of many may leave every cached state right and every served token wrong (SGLang #25187). The
logprobs that came with the tokens generated in a batch are held against a cold prefill of just these tokens,
which needs no two generations to agree. The control is the same with nobody beside it. As far as both
generations said the same, they are also compared with each other, in words.
"""

from __future__ import annotations

import numpy as np

from soak.oracle.divergence import diverge
from soak.oracle.passes import Passes, PassFailedError, Question
from soak.oracle.probe import ProbeOutcome, ProbeResult
from soak.plan.geometry import Geometry
from soak.plan.item import Segment
from soak.plan.words import Draw
from soak.sglang.exchange import Answer, TokenIds

LEAST_TOKENS = 24
"""Generated, at least: the first comes of the prefill, and the ceilings look at sixteen."""

_SHORTEST = 16  # tokens of a prompt
_LONGEST = 256  # all of a batch are prefilled before any of them generates, or nearly so


class BatchDecoding:
    """Continues prompts alone and beside up to ``companions`` others that generate as many ``tokens``."""

    def __init__(self, geometry: Geometry, *, seed: int, nonce: int, tokens: int, companions: int) -> None:
        self._geometry, self._seed, self._nonce = geometry, seed, nonce
        self._companions = companions
        self.tokens = max(tokens, LEAST_TOKENS)

    def prompt(self, ids: TokenIds, draw: Draw) -> TokenIds:
        """The beginning of these ids, shorter than a chunk. Raises PassFailedError where it is none."""
        room = min(_LONGEST, self._geometry.chunk, self._geometry.context_len - 1 - self.tokens, len(ids))
        if room < _SHORTEST:
            raise PassFailedError(
                ProbeOutcome.TOO_SHORT, f"{len(ids)} tokens are no prompt to go on from by {self.tokens}"
            )
        return ids[: draw.between(max(_SHORTEST, room // 2), room)]

    async def ask(self, result: ProbeResult, prompt: TokenIds, passes: Passes, draw: Draw) -> Question:
        """In a batch and alone, in a drawn order; what the batch said, as a question.

        Raises PassFailedError.
        """
        question = Question(prompt, len(prompt) - 1)
        steps = ["warm", "control"]
        said: dict[str, Answer] = {}
        while steps:
            step = steps.pop(draw.below(len(steps)))
            if step == "control":
                said[step] = await self._alone(passes, prompt)
                alone = self._question(prompt, said[step])
                cold = await passes.cold(alone, "control cold")
                result.control = diverge(said[step].output_logprobs, cold)
            else:
                said[step], result.ways = await self._in_a_batch(step, passes, prompt, draw)
                question = self._question(prompt, said[step])
                result.warm = said[step].output_logprobs
                result.cold = await passes.cold(question)
        result.divergence = diverge(result.warm, result.cold)
        result.ways += f"; {_in_common(said['warm'], said['control'])}"
        return question

    async def confirm(self, result: ProbeResult, question: Question, passes: Passes, draw: Draw) -> None:
        """The cold pass once more, and another batch against a cold pass of what that one says."""
        cold = await passes.cold(question, "confirming cold")
        result.cold_repeat = diverge(cold, result.cold)
        prompt = question.ids[: question.start + 1]
        again, _ = await self._in_a_batch("confirming warm", passes, prompt, draw)
        cold = await passes.cold(self._question(prompt, again), "confirming warm cold")
        result.confirmation = diverge(again.output_logprobs, cold)
        result.confirmation_cold = result.cold_repeat

    @staticmethod
    def _question(prompt: TokenIds, said: Answer) -> Question:
        """What was generated after the prompt, each token to be scored."""
        return Question(np.concatenate([prompt, said.output_ids]), len(prompt) - 1)

    async def _alone(self, passes: Passes, prompt: TokenIds) -> Answer:
        answer = await passes.continue_beside("control", prompt, self.tokens, passes.fresh())
        _refuse_hit("control", answer)
        return answer

    async def _in_a_batch(
        self, what: str, passes: Passes, prompt: TokenIds, draw: Draw
    ) -> tuple[Answer, str]:
        count = draw.between(1, self._companions)
        keys = [draw.word() % (1 << 62) for _ in range(count)]
        others = tuple(
            Segment("decode-companion", key, 0, draw.between(_SHORTEST, len(prompt))).ids(
                self._seed, self._nonce, self._geometry
            )
            for key in keys
        )
        place = draw.between(0, count)
        answer = await passes.continue_beside(
            what, prompt, self.tokens, passes.fresh(), others=others, place=place
        )
        _refuse_hit(what, answer)
        return answer, f"prompt {place + 1} of {count + 1} that generate in one request"


def _refuse_hit(what: str, answer: Answer) -> None:
    if answer.cached_tokens:
        raise PassFailedError(
            ProbeOutcome.COLD_HIT, f"the {what} pass in a fresh namespace resumed at {answer.cached_tokens}"
        )


def common_prefix(batch: Answer, alone: Answer) -> int:
    """How many tokens both said alike, from the first on."""
    differ = np.flatnonzero(batch.output_ids != alone.output_ids)
    return int(differ[0]) if differ.size else len(batch.output_ids)


def _in_common(batch: Answer, alone: Answer) -> str:
    """Batch against alone, as far as both said the same: from there on they answer other questions."""
    same = common_prefix(batch, alone)
    words = f"alone it said the same {same} of {len(batch.output_ids)} tokens"
    if not same:
        return words
    d = np.abs(batch.output_logprobs[:same] - alone.output_logprobs[:same])
    return f"{words}, there max |d| {d.max():.3g} nats"
