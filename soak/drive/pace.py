"""How long a prefill and a token have taken lately, so that an abort can be timed. Estimates, never results.

A client sees no progress of a prefill; what it can do is to wait for the planned share of the usual time. The
journal keeps when the abort was really sent.
"""

from __future__ import annotations

from soak.plan.item import Abort
from soak.sglang.exchange import Answer

_WEIGHT = 0.1  # of the newest answer
_FIRST_PREFILL_S = 1e-4  # a token, before anything was seen
_FIRST_TOKENS = 1000.0  # of prefill that this counts for
_FIRST_TOKEN_S = 0.02


class Pace:
    """Exponential means over answers that say how long their prefill took."""

    def __init__(self) -> None:
        # means of seconds and of tokens, not of their ratio: a prompt that was cached but for a token or two
        # says nothing about prefill, and would count as much as a whole one
        self._prefills_s, self._prefilled = _FIRST_PREFILL_S * _FIRST_TOKENS, _FIRST_TOKENS
        self._token_s = _FIRST_TOKEN_S

    def observe(self, answer: Answer) -> None:
        """Learn from one good answer that was streamed, or is one token long: all of it is prefill."""
        first = answer.first_token_s
        if first is None and answer.completion_tokens == 1:
            first = answer.finished_s
        if not answer.ok or first is None:
            return
        computed = max(1, answer.prompt_tokens - answer.cached_tokens)
        self._prefills_s += _WEIGHT * (first - answer.sent_s - self._prefills_s)
        self._prefilled += _WEIGHT * (computed - self._prefilled)
        if answer.completion_tokens > 1:
            a_token = (answer.finished_s - first) / (answer.completion_tokens - 1)
            self._token_s += _WEIGHT * (a_token - self._token_s)

    def delay_s(self, abort: Abort, prompt_tokens: int) -> float:
        """Seconds from sending to taking back, for a prompt of which nothing is cached."""
        prefill = self._prefills_s / self._prefilled * prompt_tokens
        if abort.after_tokens is not None:
            return prefill + self._token_s * abort.after_tokens
        return prefill * (abort.prefill_per_mille or 0) / 1000
