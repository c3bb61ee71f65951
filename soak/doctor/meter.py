"""A client that counts what it sends and stops at a stated limit, so that a look stays a small thing."""

from __future__ import annotations

from dataclasses import dataclass

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that is sent: prompts, and their tokens in all (cached or not)."""

    requests: int
    tokens: int


ALONE = Limits(requests=16, tokens=60_000)
BEHIND_DATA_PARALLELISM = Limits(requests=64, tokens=120_000)
"""Requests land on one rank or another: each question is asked up to eight times."""


class OverLimit(Exception):
    """One more request would pass the limit; it was not sent."""


class MeteredClient(SGLangClient):
    """Counts prompts and tokens of every /generate. Raises OverLimit instead of sending too much."""

    limits = ALONE
    requests = 0
    tokens = 0
    generated = 0

    async def generate(self, request: GenerateRequest) -> tuple[Answer, ...]:
        """As SGLangClient.generate, within the limits."""
        tokens = sum(len(prompt) for prompt in request.prompts)
        if (
            self.requests + len(request.prompts) > self.limits.requests
            or self.tokens + tokens > self.limits.tokens
        ):
            raise OverLimit(
                f"the next request would pass {self.limits.requests} requests or "
                f"{self.limits.tokens:,} tokens, the most that is ever sent"
            )
        self.requests += len(request.prompts)
        self.tokens += tokens
        answers = await super().generate(request)
        self.generated += sum(answer.completion_tokens for answer in answers)
        return answers
