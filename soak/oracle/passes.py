"""Single passes over one question: locate, score in a namespace, generate. Each answers or says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from soak.oracle.coarsened import Listed
from soak.oracle.probe import ProbeOutcome
from soak.sglang.exchange import Answer, Candidates, Outcome, TokenIds
from soak.sglang.session import Session

Array = npt.NDArray[np.float64]


class PassFailedError(Exception):
    """A pass gave nothing to compare; ``outcome`` says what that makes of the probe."""

    def __init__(self, outcome: ProbeOutcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Scored:
    """logprobs: shape (n - start - 1,), of the tokens from start + 1 on; cached: where the pass resumed."""

    logprobs: Array
    cached: int
    host: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Question:
    """ids: all tokens; start: the resume boundary K; answer_len: tokens of a cold continuation at the end."""

    ids: TokenIds
    start: int
    answer_len: int = 0

    def comparable(self, what: str, scored: Scored) -> Array:
        """The pass's logprobs, one per token after K and all finite. Raises PassFailedError."""
        wanted = len(self.ids) - self.start - 1
        if scored.logprobs.shape != (wanted,):
            raise PassFailedError(
                ProbeOutcome.BROKEN_INVARIANT,
                f"{what} pass: {scored.logprobs.size} logprobs for {wanted} tokens after {self.start}",
            )
        if not np.isfinite(scored.logprobs).all():
            place = int(np.flatnonzero(~np.isfinite(scored.logprobs))[0]) + self.start + 1
            raise PassFailedError(
                ProbeOutcome.NON_FINITE, f"{what} pass: the logprob at position {place} is null"
            )
        return scored.logprobs

    def listed(self, scored: Scored) -> Listed:
        """The tokens after K, with the candidates that a pass listed beside them if it was asked for any."""
        top, rows = scored.answer.input_top, scored.logprobs.size + 1
        if top is None:
            top = Candidates(np.empty((rows, 0), np.int32), np.empty((rows, 0)))
        ids = self.ids[self.start + 1 :].astype(np.int32)
        return Listed(ids, scored.logprobs, Candidates(top.ids[1:], top.logprobs[1:]))


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass as it was sent, beside its answer. what: which of its probe's passes it was.

    ids: all tokens sent; start: its ``logprob_start_len``, None where it asked for no logprobs; namespace:
    its ``extra_key``, None in the one that load lives in.
    """

    what: str
    ids: TokenIds
    max_new_tokens: int
    temperature: float
    start: int | None
    namespace: str | None
    answer: Answer


class Passes:
    """The oracle's requests: not streamed, greedy, each counted in prefill tokens and told to ``on_pass``.

    worker: who must answer all of them; by default whoever answers the first one. rank: which data-parallel
    one they are sent to. adapter: the LoRA adapter that answers, None for none.
    """

    def __init__(
        self,
        session: Session,
        timeout_s: float,
        on_pass: Callable[[Pass], None] = lambda _: None,
        *,
        worker: str = "",
        rank: int | None = None,
        adapter: str | None = None,
    ) -> None:
        self._session = session
        self._adapter = adapter
        self._timeout_s = timeout_s
        self._on_pass = on_pass
        self.worker, self._rank = worker, rank
        self.tokens_prefilled = 0
        self.tokens_decoded = 0

    def fresh(self) -> str:
        """A namespace that nothing was ever written to."""
        return self._session.namespace()

    async def _one(
        self,
        what: str,
        ids: TokenIds,
        namespace: str | None,
        *,
        max_new_tokens: int = 0,
        temperature: float = 0.0,
        start: int | None = None,
        top_k: int = 0,
    ) -> Answer:
        (answer,) = await self._session.generate(
            (ids,),
            timeout_s=self._timeout_s,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            return_logprob=start is not None,
            logprob_start_len=start,
            top_logprobs_num=top_k,
            extra_key=namespace,
            routed_dp_rank=self._rank,
            lora_path=self._adapter,
        )
        self._seen(Pass(what, ids, max_new_tokens, temperature, start, namespace, answer))
        return self._of_one_worker(what, self._good(what, answer))

    def _of_one_worker(self, what: str, answer: Answer) -> Answer:
        """The answer, unless another worker gave it than the ones before. Raises PassFailedError."""
        if answer.worker and self.worker and answer.worker != self.worker:
            raise PassFailedError(
                ProbeOutcome.ELSEWHERE,
                f"the {what} pass was answered by worker {answer.worker}, and the prefix is in the cache of "
                f"{self.worker}",
            )
        self.worker = self.worker or answer.worker
        return answer

    def _seen(self, sent: Pass) -> None:
        self._on_pass(sent)
        self.tokens_prefilled += max(0, sent.answer.prompt_tokens - sent.answer.cached_tokens)
        self.tokens_decoded += sent.answer.completion_tokens

    @staticmethod
    def _good(what: str, answer: Answer) -> Answer:
        if answer.ok:
            return answer
        if answer.outcome is Outcome.INVALID_LOGPROBS:
            hard = ProbeOutcome.NON_FINITE if "null" in answer.detail else ProbeOutcome.BROKEN_INVARIANT
            raise PassFailedError(hard, f"{what} pass: {answer.detail}")
        if answer.breaks_invariant:
            raise PassFailedError(ProbeOutcome.BROKEN_INVARIANT, f"{what} pass: {answer.detail}")
        raise PassFailedError(
            ProbeOutcome.REQUEST_FAILED, f"{what} pass: {answer.outcome.value}: {answer.detail}"
        )

    async def locate(self, ids: TokenIds, namespace: str | None) -> tuple[int, int]:
        """Where a request with these ids would resume: (cached tokens, of them from the host tier)."""
        answer = await self._one("locate", ids, namespace, start=len(ids) - 1)
        return answer.cached_tokens, answer.cached_details.get("host", 0)

    async def score(
        self, what: str, ids: TokenIds, start: int, namespace: str | None, *, top_k: int = 0
    ) -> Scored:
        """Logprobs of ids[start + 1:], prefilled from where the namespace's cache ends, at most start.

        top_k: candidates to list at each of these places.
        """
        answer = await self._one(what, ids, namespace, start=start, top_k=top_k)
        return Scored(
            logprobs=answer.input_logprobs[1:],
            cached=answer.cached_tokens,
            host=answer.cached_details.get("host", 0),
            answer=answer,
        )

    async def score_beside(
        self,
        what: str,
        ids: TokenIds,
        start: int,
        namespace: str,
        *,
        others: tuple[TokenIds, ...],
        place: int,
    ) -> Scored:
        """The same in one request with others, as the prompt of that place. Others are longer than start."""
        answer = await self._beside(what, ids, namespace, others=others, place=place, tokens=0, start=start)
        return Scored(answer.input_logprobs[1:], answer.cached_tokens, 0, answer)

    async def continue_beside(
        self,
        what: str,
        ids: TokenIds,
        tokens: int,
        namespace: str,
        *,
        others: tuple[TokenIds, ...] = (),
        place: int = 0,
    ) -> Answer:
        """``tokens`` greedy ones after these ids, with a logprob for each, alone or beside others that
        generate as many."""
        answer = await self._beside(what, ids, namespace, others=others, place=place, tokens=tokens)
        for name, count in (("tokens", len(answer.output_ids)), ("logprobs", answer.output_logprobs.size)):
            if count != tokens:
                raise PassFailedError(
                    ProbeOutcome.REQUEST_FAILED, f"{what} pass: {count} {name} came back, {tokens} asked"
                )
        return answer

    async def _beside(
        self,
        what: str,
        ids: TokenIds,
        namespace: str,
        *,
        others: tuple[TokenIds, ...],
        place: int,
        tokens: int,
        start: int | None = None,
    ) -> Answer:
        """The answer to one prompt of a request."""
        prompts = [*others[:place], ids, *others[place:]]
        answers = await self._session.generate(
            prompts,
            timeout_s=self._timeout_s,
            max_new_tokens=tokens,
            temperature=0.0,
            return_logprob=True,
            logprob_start_len=start,
            extra_key=namespace,
            routed_dp_rank=self._rank,
            lora_path=self._adapter,
        )
        for number, (sent, answer) in enumerate(zip(prompts, answers, strict=True)):
            name = what if number == place else "companion"
            self._seen(Pass(name, sent, tokens, 0.0, start, namespace, answer))
        return self._of_one_worker(what, self._good(what, answers[place]))

    async def generate(
        self, what: str, ids: TokenIds, tokens: int, temperature: float, namespace: str | None
    ) -> TokenIds:
        """``tokens`` ids generated after these."""
        answer = await self._one(what, ids, namespace, max_new_tokens=tokens, temperature=temperature)
        if len(answer.output_ids) < tokens:
            raise PassFailedError(
                ProbeOutcome.REQUEST_FAILED,
                f"{what} pass: {len(answer.output_ids)} tokens generated, {tokens} asked",
            )
        return answer.output_ids

    async def cold(self, question: Question, what: str = "cold") -> Array:
        """Score a question in a namespace that nothing was written to. Raises PassFailedError."""
        return (await self.cold_scored(question, what)).logprobs

    async def cold_scored(self, question: Question, what: str = "cold", *, top_k: int = 0) -> Scored:
        """The same with all that the pass said; its logprobs are comparable. Raises PassFailedError."""
        scored = await self.score(what, question.ids, question.start, self.fresh(), top_k=top_k)
        if scored.cached:
            raise PassFailedError(
                ProbeOutcome.COLD_HIT, f"the {what} pass in a fresh namespace resumed at {scored.cached}"
            )
        question.comparable(what, scored)
        return scored
