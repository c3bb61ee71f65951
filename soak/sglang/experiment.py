"""A handful of requests in private namespaces: does the server do what probes need, and where does it resume?

The answers decide whether the target can be used at all: /generate, input logprobs, ``logprob_start_len``
that limits the match, ``extra_key`` that separates namespaces, a cache that finds what was written.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, Outcome, TokenIds
from soak.sglang.grid import Resumption, attention_only, probing_length

_BEYOND_ANY_VOCABULARY = (1 << 31) - 1
_RANGE = re.compile(r"valid range is \[0, ?(\d{1,9})\)|vocab(?:ulary)? size \((\d{1,9})\)")
_TAIL = 9  # tokens after the written part: enough to be scored
_LONGEST = 1023  # tokens beyond a boundary that are enough to tell any grid of states
_TIMEOUT_S = 60.0
_ABORT_S = 0.8


class TargetUnusable(Exception):
    """The target cannot be soaked. The message says what is wrong, where, and what to use instead."""


class NoGenerate(TargetUnusable):
    """/generate itself is missing, closed to us, or does not answer."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the requests showed."""

    vocab_size: int | None
    hybrid: bool
    resumptions: tuple[Resumption, ...]
    notes: tuple[str, ...]


class Experiment:
    """The requests, and what they show. Lengths in tokens. on_sending: told of each rid before it is sent."""

    def __init__(
        self,
        client: SGLangClient,
        *,
        chunk: int,
        page: int,
        context: int,
        on_sending: Callable[[str], None] = lambda _rid: None,
    ) -> None:
        self._rank: int | None = None
        self._client, self._on_sending = client, on_sending
        self._chunk = chunk
        self._page = page
        self._context = context
        self._name = f"soak-preflight-{secrets.token_hex(6)}"
        self._sent = 0
        self._latest = self._name
        self._tries = 1
        self._words = np.random.Generator(np.random.Philox(secrets.randbits(64)))
        self._ids_below = 1000
        self._notes: list[str] = []

    async def run(self, *, affordable_tokens: int, hybrid: bool | None, data_parallel: int) -> Findings:
        """Raises TargetUnusable. ``hybrid``: what the server says, None if it does not.

        Cancelled, it takes back what it has on the server.
        """
        try:
            return await self._run(affordable_tokens, hybrid, data_parallel)
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ABORT_S):
                    # the one under way, by its whole name: with one tokenizer worker SGLang drops a prefix
                    await self._client.abort(self._latest)
            raise

    async def _run(self, affordable_tokens: int, hybrid: bool | None, data_parallel: int) -> Findings:
        self._rank = 0 if data_parallel > 1 else None
        vocab = await self._vocabulary()
        self._ids_below = max(min(vocab or 1000, 1 << 20), 16)
        self._tries = min(8, 1 if data_parallel <= 1 else 2 * data_parallel)
        room = max(8, min(self._context - 2 * _TAIL, affordable_tokens // 4))
        short = self._ids(probing_length(min(self._chunk, room, _LONGEST + 1)))
        seen = [await self._write_and_resume(short, "a")]
        kept = seen[0].cached or await self._hit(short, "a")
        is_hybrid = hybrid if hybrid is not None else not attention_only(seen, self._page)
        namespace, prompt = "a", short
        if is_hybrid or not kept:
            length = self._chunk + probing_length(min(self._chunk, _LONGEST + 1))
            if length + _TAIL < self._context and 2 * length <= affordable_tokens:
                long = self._ids(length)
                seen.append(await self._write_and_resume(long, "b"))
                if not kept:
                    kept, namespace, prompt = seen[1].cached, "b", long
            else:
                self._notes.append(
                    f"A prompt longer than one chunk ({self._chunk} tokens) was too dear for the preflight: "
                    "where it resumes is not known."
                )
        if kept:
            await self._check_namespaces(prompt)
            await self._check_start(prompt, namespace)
        else:
            self._nothing_found(len(prompt), data_parallel)
        return Findings(vocab, is_hybrid, tuple(seen), tuple(self._notes))

    async def _vocabulary(self) -> int | None:
        """The size of the vocabulary, from the words in which an id beyond it is refused.

        Sent without ``return_logprob``: a release that checks the ids refuses it all the same, and one that
        does not check them does not use them.
        """
        (answer,) = await self._client.generate(
            GenerateRequest(
                prompts=(np.array([11, 12, 13], np.int32),),
                rids=(self._rid(),),
                max_new_tokens=0,
                token_ids_logprob=(_BEYOND_ANY_VOCABULARY,),
                extra_key=f"{self._name}-v",
                timeout_s=_TIMEOUT_S,
                routed_dp_rank=self._rank,
            )
        )
        self._check_reachable(answer)
        named = _RANGE.search(answer.detail)
        return int(named[1] or named[2]) if answer.outcome is Outcome.REJECTED and named else None

    def _check_reachable(self, answer: Answer) -> None:
        """The endpoint itself: there, and open to us."""
        url = self._client.base_url
        if answer.http_status in (404, 405, 501):
            raise NoGenerate(
                f"{url} has no /generate ({answer.detail}). soak needs SGLang's own API: name the server "
                "itself, not a gateway in front of it."
            )
        if answer.http_status in (401, 403):
            raise NoGenerate(
                f"{url} refuses /generate ({answer.detail}). Put a key that may use it into the environment "
                "variable that target.api_key_env names, or into target.api_key_file."
            )
        if answer.outcome in (Outcome.DISCONNECTED, Outcome.TIMED_OUT, Outcome.SERVER_ERROR):
            raise NoGenerate(
                f"{url} does not answer /generate: {answer.detail}. Look at the server's log; name one that "
                "serves requests."
            )

    async def _write_and_resume(self, prompt: TokenIds, namespace: str) -> Resumption:
        """Writes a prompt, then asks one that leaves it at its last token."""
        await self._ask(prompt, namespace, start=max(0, len(prompt) - 4))
        asked = self._and_tail(prompt[:-1], not_first=int(prompt[-1]))
        return Resumption(len(prompt), await self._furthest(asked, namespace, len(asked) - 1))

    async def _hit(self, prompt: TokenIds, namespace: str) -> int:
        """Where the prompt and more resumes."""
        asked = self._and_tail(prompt)
        return await self._furthest(asked, namespace, len(asked) - 1)

    async def _furthest(self, prompt: TokenIds, namespace: str, start: int) -> int:
        """The longest hit over a few tries: behind data parallelism the first may land on another rank."""
        return max([(await self._ask(prompt, namespace, start)).cached_tokens for _ in range(self._tries)])

    async def _ask(self, prompt: TokenIds, namespace: str, start: int) -> Answer:
        """One scoring request. Raises TargetUnusable if it has no usable answer."""
        (answer,) = await self._client.generate(
            GenerateRequest(
                prompts=(prompt,),
                rids=(self._rid(),),
                max_new_tokens=0,
                return_logprob=True,
                logprob_start_len=start,
                extra_key=f"{self._name}-{namespace}",
                timeout_s=_TIMEOUT_S,
                routed_dp_rank=self._rank,
            )
        )
        if answer.ok:
            return answer
        self._check_reachable(answer)
        url = self._client.base_url
        if answer.outcome is Outcome.INVALID_LOGPROBS and answer.input_token_ids.size > len(prompt) - start:
            raise TargetUnusable(
                f"{url} ignores logprob_start_len: {len(prompt) - start} logprobs were asked for, "
                f"{answer.input_token_ids.size} came back. Probes cannot be placed there; use an SGLang of "
                "0.5.15 or newer, without a gateway that rewrites requests."
            )
        if answer.outcome is Outcome.INVALID_LOGPROBS and not answer.input_token_ids.size:
            raise TargetUnusable(
                f"{url} returns no logprobs of the prompt ({answer.detail}). Probes compare them; use an "
                "SGLang of 0.5.15 or newer, without a gateway that drops return_logprob."
            )
        if answer.outcome is Outcome.INVALID_LOGPROBS:
            return answer  # a null or two do not hide where it resumed, and finding them is the soak's job
        raise TargetUnusable(
            f"{url} gave no usable answer to a prompt of {len(prompt)} tokens with logprobs: "
            f"{answer.outcome.value}, {answer.detail}. Look at the server's log."
        )

    async def _check_namespaces(self, prompt: TokenIds) -> None:
        asked = self._and_tail(prompt)
        cached = 0
        for _ in range(self._tries):  # each in a namespace of its own
            self._sent += 1
            cached = max(cached, (await self._ask(asked, f"n{self._sent}", len(asked) - 1)).cached_tokens)
        if cached > 0:
            raise TargetUnusable(
                f"{self._client.base_url} ignores extra_key: a prompt written in one namespace was found "
                f"from another ({cached} tokens). Without separate namespaces there is no cold pass; use an "
                "SGLang of 0.5.15 or newer, without a gateway that drops extra_key."
            )

    async def _check_start(self, prompt: TokenIds, namespace: str) -> None:
        start = min(3, len(prompt) - 1)
        cached = await self._furthest(self._and_tail(prompt), namespace, start)
        if cached > start:
            raise TargetUnusable(
                f"{self._client.base_url} ignores logprob_start_len when it looks up its cache: {start} was "
                f"asked for, {cached} tokens were reused. Passes cannot be placed; use an SGLang of 0.5.15 "
                "or newer."
            )

    def _nothing_found(self, length: int, data_parallel: int) -> None:
        if data_parallel > 1:
            self._notes.append(
                f"Nothing written was found in the cache again over {data_parallel} data-parallel ranks: "
                "requests of one conversation may go to different ranks."
            )
            return
        raise TargetUnusable(
            f"{self._client.base_url} finds nothing in its cache: a prompt of {length} tokens "
            "written a moment ago was computed anew. Is the radix cache off, the pool too small, or does a "
            "router in front spread requests? Name one server with a working prefix cache."
        )

    def _ids(self, n: int) -> TokenIds:
        low = min(10, self._ids_below // 2) if self._ids_below < 10_000 else 1000
        return self._words.integers(low, self._ids_below - self._ids_below // 100, n).astype(np.int32)

    def _and_tail(self, prompt: TokenIds, not_first: int = -1) -> TokenIds:
        """The prompt and a few random ids, the first of them not the one named."""
        tail = self._ids(_TAIL)
        while int(tail[0]) == not_first:
            tail = self._ids(_TAIL)
        return np.concatenate([prompt, tail])

    def _rid(self) -> str:
        self._sent += 1
        self._latest = f"{self._name}-{self._sent:04d}"
        self._on_sending(self._latest)
        return self._latest
